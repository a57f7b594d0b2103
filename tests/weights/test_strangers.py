"""What a process without the secret can do to a transfer whose ports it reaches: nothing but cost an epoch."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import DistStoreError, PrefixStore, TCPStore  # type: ignore[attr-defined]

from rollart_hpc.types import WeightsId
from rollart_hpc.weights.direct import BucketStream
from rollart_hpc.weights.meeting import Request, Table, new_secret
from rollart_hpc.weights.meeting_store import MeetingStore
from rollart_hpc.weights.process_groups import RankSetup, TransferError, _gloo
from rollart_hpc.weights.proofs import Stranger, prove
from rollart_hpc.weights.store import views
from rollart_hpc.weights.transfer import Receiving, Rendezvous, Sending, open_rendezvous

HOST = "127.0.0.1"
PATIENCE_S = 60.0
ID = WeightsId(1, 2)


def in_thread(work: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    """The list gets what `work` returns or raises."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(work())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def send(rendezvous: Rendezvous) -> int:
    stream = BucketStream([("w", torch.arange(1000.0))], 1 << 20)
    return Sending(rendezvous, 2, PATIENCE_S).send(ID, stream, stream.digest.hexdigest)


def receive(rendezvous: Rendezvous, secret: str, deadline_s: float = PATIENCE_S) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    with Receiving(HOST, rendezvous.port, secret, 1, 2, deadline_s=deadline_s) as receiving:
        for info, raw in receiving.buckets(lambda _, size: torch.empty(size, dtype=torch.uint8)):
            found.update({name: tensor.clone() for name, tensor in views(info, raw)})
        receiving.acknowledge()
    return found


def test_strangers_at_the_rendezvous_get_nothing_and_the_transfer_succeeds() -> None:
    rendezvous = open_rendezvous(HOST)
    sender, sent = in_thread(lambda: send(rendezvous))
    with socket.create_connection((HOST, rendezvous.port)) as silent, socket.create_connection(silent.getpeername()):
        with pytest.raises(TransferError, match=r"secret|lost the connection"):
            receive(rendezvous, new_secret())
        with pytest.raises(RuntimeError):  # torch's own client
            TCPStore(HOST, rendezvous.port, None, False, timedelta(seconds=1), False).get("backend")
        assert torch.equal(receive(rendezvous, rendezvous.secret)["w"], torch.arange(1000.0))
    sender.join(PATIENCE_S)
    assert sent == [4000]


def formed(rendezvous: Rendezvous, rank: int, size: int) -> tuple[Any, MeetingStore, PrefixStore]:
    deadline = timedelta(seconds=PATIENCE_S)
    store = (
        rendezvous.open(PATIENCE_S) if rank == 0 else MeetingStore(HOST, rendezvous.port, rendezvous.secret, deadline)
    )
    prefixed = PrefixStore("group", store)
    return _gloo(prefixed, RankSetup(rank, size, HOST, PATIENCE_S)), store, prefixed


def test_a_stranger_in_the_place_of_a_rank_is_found_before_anything_else_is_sent() -> None:
    """It holds a connection of gloo, which takes anybody. Here it even got the meeting's key, but not the secret."""
    rendezvous, size = open_rendezvous(HOST), 3
    honest = [in_thread(lambda rank=rank: formed(rendezvous, rank, size)) for rank in range(size)]
    for thread, _ in honest:
        thread.join(PATIENCE_S)
    members = [outcome[0] for _, outcome in honest]
    secrets = [rendezvous.secret, rendezvous.secret, new_secret()]
    proofs = [
        in_thread(lambda m=member, s=secret: prove(m[0], m[2], s, timedelta(seconds=PATIENCE_S)))
        for member, secret in zip(members, secrets, strict=True)
    ]
    for thread, _ in proofs:
        thread.join(PATIENCE_S)
    for _, outcome in proofs[:2]:
        assert isinstance(outcome[0], Stranger) and "took the place of rank 2" in str(outcome[0])
    assert isinstance(proofs[2][1][0], Stranger)  # nor does it take anything from the others
    for group, store, _ in reversed(members):
        del group
        store.close()


def test_members_prove_themselves() -> None:
    rendezvous = open_rendezvous(HOST)

    def member(rank: int) -> bool:
        group, store, prefixed = formed(rendezvous, rank, 2)
        prove(group, prefixed, rendezvous.secret, timedelta(seconds=PATIENCE_S))
        one = torch.ones(1)
        group.allreduce([one]).wait()
        del group
        if rank:
            store.close()
        return one.item() == 2.0

    members = [in_thread(lambda rank=rank: member(rank)) for rank in range(2)]
    for thread, _ in members:
        thread.join(PATIENCE_S)
    assert [outcome for _, outcome in members] == [[True], [True]]


def test_the_store_does_what_torch_expects_of_one() -> None:
    rendezvous = open_rendezvous(HOST)
    store = rendezvous.open(PATIENCE_S)
    other = MeetingStore(HOST, rendezvous.port, rendezvous.secret, timedelta(seconds=PATIENCE_S))
    waiter, waited = in_thread(lambda: other.get("late"))
    assert store.add("n", 2) == 2 and store.add("n", 3) == 5
    assert not store.check(["late"])
    store.set("late", "here")
    waiter.join(PATIENCE_S)
    assert waited == [b"here"] and other.check(["late", "n"]) and other.num_keys() == 2
    store.append("late", "!")
    assert other.multi_get(["late", "n"]) == [b"here!", b"5"]
    assert store.compare_set("late", "wrong", "x") == b"here!" and store.compare_set("late", "here!", "x") == b"x"
    assert store.delete_key("late") and not store.delete_key("late")
    with pytest.raises(DistStoreError, match="no answer"):
        other.wait(["never"], timedelta(seconds=0.1))
    assert other.get("n") == b"5"  # the late answer to an earlier question is not taken for this one's
    store.close()
    with pytest.raises(DistStoreError, match="lost the connection"):
        other.get("never")
    other.close()


def test_one_key_answers_all_who_wait_for_it() -> None:
    table = Table()
    for client in (b"a", b"b"):
        assert table.answer(client, Request(1, "get", ["x", "y"])) == []
    assert [client for client, _ in table.answer(b"c", Request(1, "set", ["y"], [b"2"]))] == [b"c"]
    given = table.answer(b"c", Request(2, "set", ["x"], [b"1"]))
    assert [(client, answer.values) for client, answer in given] == [
        (b"c", []),
        (b"a", [b"1", b"2"]),
        (b"b", [b"1", b"2"]),
    ]
