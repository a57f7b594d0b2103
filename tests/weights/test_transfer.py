"""Transfers between real processes, and what a killed or stopped one does to the others."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest
import torch

from rollart_hpc.types import WeightsId
from rollart_hpc.weights.layout import BucketInfo
from rollart_hpc.weights.process_groups import TransferError
from rollart_hpc.weights.store import NodeStore
from rollart_hpc.weights.transfer import Sending, open_rendezvous
from rollart_hpc.wire.messages import (
    Adopt,
    Held,
    TransferFailed,
    TransferJoin,
    TransferOffer,
    TransferReady,
    TransferSent,
)

from .conftest import DEADLINE_S, SHORT_S, Peer, Peers

ID = WeightsId(1, 3)
MEGABYTE = 1 << 20


def tensors(num_megabytes: int = 8) -> list[tuple[str, torch.Tensor]]:
    torch.manual_seed(num_megabytes)
    large = [(f"layer.{i}", torch.randn(MEGABYTE // 4)) for i in range(num_megabytes)]
    return [("odd", torch.randn(7, 3).bfloat16()), ("scalar", torch.tensor(1.5)), *large]


def same(stored: NodeStore, expected: list[tuple[str, torch.Tensor]], weights_id: WeightsId = ID) -> bool:
    found = list(stored.open(weights_id))
    return len(found) == len(expected) and all(
        a == b and torch.equal(x, y) for (a, x), (b, y) in zip(found, expected, strict=True)
    )


def transfer(
    source: NodeStore,
    targets: list[Peer],
    epoch: int,
    at_bucket: tuple[int, Callable[[], None]] = (-1, lambda: None),
) -> int:
    """Send from this process. `at_bucket`: do something right before that bucket leaves."""
    stored = source.open(ID)

    def buckets() -> Iterator[tuple[BucketInfo, torch.Tensor]]:
        for index, item in enumerate(stored.buckets()):
            if index == at_bucket[0]:
                at_bucket[1]()
            yield item

    rendezvous = open_rendezvous("127.0.0.1")
    size = 1 + len(targets)
    for rank, target in enumerate(targets, 1):
        target.send(TransferJoin(epoch, *ID, rank, size, rendezvous.host, rendezvous.port, rendezvous.secret))
    return Sending(rendezvous, size, targets[0].deadline_s).send(ID, buckets(), lambda: stored.manifest.digest)


@pytest.fixture
def source(peers: Peers) -> NodeStore:
    store = NodeStore(peers.root, "source")
    store.write(ID, tensors(), MEGABYTE)
    return store


def test_two_targets_receive_the_very_same_files(peers: Peers, source: NodeStore) -> None:
    targets = [peers.start("a"), peers.start("b")]
    num_bytes = transfer(source, targets, epoch=1)
    for target in targets:
        held = target.recv()
        assert isinstance(held, Held) and held.num_bytes == num_bytes
        assert same(target.store, tensors())
        for path in (source.directory / "v1-3").iterdir():
            assert (target.store.directory / "v1-3" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("bucket", [0, 4, 7])
def test_a_killed_target_breaks_its_epoch_for_all_and_not_the_next_one(
    peers: Peers, source: NodeStore, bucket: int
) -> None:
    survivor, victim = peers.start("a"), peers.start("b")
    with pytest.raises(TransferError):
        transfer(source, [victim, survivor], 1, (bucket, lambda: victim.signal(signal.SIGKILL)))
    outcome = survivor.recv()
    assert isinstance(outcome, TransferFailed) and outcome.epoch == 1
    assert survivor.store.versions() == []
    assert list(survivor.store.directory.glob("tmp-*")) == []
    assert transfer(source, [survivor], 2) > 0
    assert isinstance(survivor.recv(), Held)
    assert same(survivor.store, tensors())


@pytest.mark.parametrize("bucket", [2, 8])
def test_a_stopped_target_breaks_its_epoch_within_the_deadline_and_joins_the_next_one(
    peers: Peers, source: NodeStore, bucket: int
) -> None:
    peers.deadline_s = SHORT_S
    other, victim = peers.start("a"), peers.start("b")
    with pytest.raises(TransferError):
        transfer(source, [other, victim], 1, (bucket, lambda: victim.signal(signal.SIGSTOP)))
    assert isinstance(other.recv(), TransferFailed | Held)  # complete if the last bucket had reached it
    victim.signal(signal.SIGCONT)
    assert isinstance(victim.recv(), TransferFailed | Held)
    transfer(source, [other, victim], 2)
    for target in (other, victim):
        assert isinstance(target.recv(), Held)
        assert same(target.store, tensors())


def test_a_source_that_breaks_off_is_noticed_at_once(peers: Peers, source: NodeStore) -> None:
    def break_off() -> None:
        raise RuntimeError("out of memory")

    target = peers.start("a")
    with pytest.raises(RuntimeError, match="out of memory"):
        transfer(source, [target], 1, (3, break_off))
    outcome = target.recv()
    assert isinstance(outcome, TransferFailed) and "within" not in outcome.reason


def test_a_target_that_never_comes() -> None:
    with pytest.raises(TransferError, match="could not form the group"):
        Sending(open_rendezvous("127.0.0.1"), 2, 0.5)


def test_a_bucket_damaged_on_the_way_is_refused(peers: Peers, source: NodeStore) -> None:
    target = peers.start("a")
    stored = source.open(ID)

    def damaged() -> Iterator[tuple[BucketInfo, torch.Tensor]]:
        for index, (info, raw) in enumerate(stored.buckets()):
            if index == 2:
                raw[5] ^= 1
            yield info, raw

    rendezvous = open_rendezvous("127.0.0.1")
    target.send(TransferJoin(1, *ID, 1, 2, rendezvous.host, rendezvous.port, rendezvous.secret))
    with pytest.raises(TransferError):
        Sending(rendezvous, 2, DEADLINE_S).send(ID, damaged(), lambda: "")
    outcome = target.recv()
    assert isinstance(outcome, TransferFailed) and "checksum" in outcome.reason
    assert target.store.versions() == []


def test_relays_pass_on_what_one_of_them_adopted(peers: Peers, source: NodeStore) -> None:
    first, second = peers.start("source"), peers.start("b")
    assert isinstance(first.recv(), Held)  # a restarted relay tells what its store holds
    first.send(Adopt(*ID))
    assert isinstance(first.recv(), Held)
    first.send(TransferOffer(5, *ID, 2))
    ready = first.recv()
    assert isinstance(ready, TransferReady)
    second.send(TransferJoin(5, *ID, 1, 2, ready.host, ready.port, ready.secret))
    sent, held = first.recv(), second.recv()
    assert isinstance(sent, TransferSent) and isinstance(held, Held)
    assert sent.num_bytes == held.num_bytes
    assert same(second.store, tensors())


def test_a_newer_epoch_frees_a_relay_from_an_older_one(peers: Peers, source: NodeStore) -> None:
    """The old epoch waits for a stopped peer; the new one does not wait for the old one's end."""
    peers.deadline_s = SHORT_S
    target, stuck = peers.start("a"), peers.start("b")

    def begin_another() -> None:
        stuck.signal(signal.SIGSTOP)
        transfer(source, [target], 2)

    with pytest.raises(TransferError):
        transfer(source, [target, stuck], 1, (4, begin_another))
    outcomes = [target.recv(), target.recv()]
    assert {type(outcome) for outcome in outcomes} == {TransferFailed, Held}
    assert same(target.store, tensors())


def test_a_bucket_damaged_in_shared_memory_is_never_held_and_its_relay_says_so(peers: Peers) -> None:
    """The source verified it once; whoever damages it later is found out by the target, then by the source itself."""
    first, second = peers.start("a"), peers.start("b")
    first.store.write(ID, tensors(2), MEGABYTE)
    first.send(Adopt(*ID))
    assert isinstance(first.recv(), Held)
    with open(first.store.open(ID).directory / "bucket_1.bin", "r+b") as file:
        file.seek(1000)
        byte = file.read(1)
        file.seek(1000)
        file.write(bytes([byte[0] ^ 1]))
    first.send(TransferOffer(1, *ID, 2))
    ready = first.recv()
    assert isinstance(ready, TransferReady)
    second.send(TransferJoin(1, *ID, 1, 2, ready.host, ready.port, ready.secret))
    refused = second.recv()
    assert isinstance(refused, TransferFailed) and "checksum" in refused.reason and second.store.versions() == []
    told = [first.recv(), first.recv()]
    assert sorted(message.epoch for message in told if isinstance(message, TransferFailed)) == [0, 1]
    assert first.store.versions() == []
