"""Memory of pruned versions is used again, and never while someone may read it."""

from __future__ import annotations

import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from rollart_hpc.types import WeightsId
from rollart_hpc.weights import store as store_module
from rollart_hpc.weights.layout import BadWeights
from rollart_hpc.weights.spares import hold
from rollart_hpc.weights.store import MANIFEST, NodeStore, StoredWeights, new_bucket
from rollart_hpc.weights.transfer import Sending, open_rendezvous
from rollart_hpc.wire.messages import Held, TransferJoin
from tests.processes import server

from .conftest import DEADLINE_S, PATIENCE_S, Peers

BUCKET = 4096
NUM_BUCKETS = 3


@pytest.fixture
def store(tmp_path: Path) -> NodeStore:
    return NodeStore(tmp_path / "root", "node-0")


def receive(store: NodeStore, source: NodeStore, version: int, num_values: int = BUCKET // 4) -> list[int]:
    """As a relay does it: a version whose every number is `version`, and the inodes of its buckets."""
    weights_id = WeightsId(1, version)
    named = [(f"t{i}", torch.full((num_values,), float(version))) for i in range(NUM_BUCKETS)]
    manifest = source.write(weights_id, named, BUCKET)
    with store.draft(weights_id) as draft:
        for index, (info, raw) in enumerate(source.open(weights_id).buckets()):
            new_bucket(draft, index, info.num_bytes).copy_(raw)
        draft.commit(MANIFEST, manifest.encode())
    return inodes(store, version)


def inodes(store: NodeStore, version: int) -> list[int]:
    directory = store.directory / f"v1-{version}"
    return [os.stat(directory / f"bucket_{i}.bin").st_ino for i in range(NUM_BUCKETS)]


def values(stored: StoredWeights) -> set[float]:
    return {value for _, tensor in stored for value in tensor.tolist()}


@pytest.fixture
def source(tmp_path: Path) -> NodeStore:
    return NodeStore(tmp_path / "root", "source")


def test_a_version_that_nobody_reads_leaves_its_memory_to_the_next(store: NodeStore, source: NodeStore) -> None:
    first = receive(store, source, 1)
    assert store.prune(0) == [WeightsId(1, 1)] and store.versions() == []
    assert receive(store, source, 2) == first
    assert values(store.open(WeightsId(1, 2))) == {2.0}
    store.open(WeightsId(1, 2)).verify()


def test_only_the_last_pruned_version_is_kept_and_the_end_removes_it(store: NodeStore, source: NodeStore) -> None:
    for version in (1, 2, 3):
        receive(store, source, version)
    store.prune(0)
    assert [path.name for path in store.directory.iterdir()] == ["tmp-v1-3.spare"]
    NodeStore(store.root, "node-0").prune(0)  # another process of the node does not sweep what is in use
    assert len(list(store.directory.iterdir())) == 1
    store.remove()
    assert not store.directory.exists()


def test_another_layout_gets_memory_of_its_own_and_frees_the_spare(store: NodeStore, source: NodeStore) -> None:
    receive(store, source, 1)
    store.prune(0)
    spare = store.directory / "tmp-v1-1.spare" / "bucket_0.bin"
    assert spare.exists()
    receive(store, source, 2, BUCKET)
    assert not spare.exists() and values(store.open(WeightsId(1, 2))) == {2.0}


def test_a_reader_keeps_what_it_opened_while_its_successors_arrive(store: NodeStore, source: NodeStore) -> None:
    first = receive(store, source, 1)
    tensor = dict(store.open(WeightsId(1, 1)))["t1"]  # only its mapping lives, no longer the reader
    store.prune(0)
    assert not set(receive(store, source, 2)) & set(first)
    assert set(tensor.tolist()) == {1.0}
    del tensor
    store.prune(0)
    assert store.versions() == []


def test_a_reader_that_comes_between_finds_nothing(
    store: NodeStore, source: NodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has opened a file, then the version is pruned and its memory filled with the next one, then it locks."""
    first = receive(store, source, 1)
    opened, go_on = threading.Event(), threading.Event()
    outcome: list[object] = []

    def late(*args: object) -> None:
        opened.set()
        assert go_on.wait(PATIENCE_S)
        hold(*args)  # type: ignore[arg-type]

    def read() -> None:
        try:
            outcome.append(values(store.open(WeightsId(1, 1))))
        except BadWeights as error:
            outcome.append(error)

    with monkeypatch.context() as patched:
        patched.setattr(store_module, "hold", late)
        reader = threading.Thread(target=read)
        reader.start()
        assert opened.wait(PATIENCE_S)
        store.prune(0)
    assert receive(store, source, 2) == first
    go_on.set()
    reader.join(PATIENCE_S)
    assert isinstance(outcome[0], BadWeights) and "v1-1 are not in" in str(outcome[0])


def _read_for_ever(pipe: Connection, root: Path) -> None:
    stored = NodeStore(root, "node-0").open(WeightsId(1, 1))
    pipe.send(values(stored))
    pipe.recv()
    pipe.send(values(stored))
    pipe.recv()


@pytest.mark.parametrize("dies", [False, True])
def test_readers_in_other_processes(store: NodeStore, source: NodeStore, dies: bool) -> None:
    """One that lives keeps its version; one that was killed keeps nothing."""
    first = receive(store, source, 1)
    pipe, theirs = server.Pipe()
    reader = server.Process(target=_read_for_ever, args=(theirs, store.root), daemon=True)
    reader.start()
    theirs.close()
    assert pipe.poll(PATIENCE_S) and pipe.recv() == {1.0}
    if dies:
        assert reader.pid
        os.kill(reader.pid, signal.SIGKILL)
        reader.join(PATIENCE_S)
    store.prune(0)
    assert (receive(store, source, 2) == first) is dies
    if not dies:
        pipe.send("again")
        assert pipe.poll(PATIENCE_S) and pipe.recv() == {1.0}
        reader.kill()


def test_a_version_that_another_process_replaced_is_not_used_again(store: NodeStore, source: NodeStore) -> None:
    receive(store, source, 1)
    receive(NodeStore(store.root, "node-0"), source, 1)
    store.prune(0)
    assert list(store.directory.iterdir()) == []
    receive(store, source, 2)
    assert values(store.open(WeightsId(1, 2))) == {2.0}


def _leave_a_spare(root: Path) -> None:
    mine = NodeStore(root, "node-0")
    receive(mine, NodeStore(root, "source"), 1)
    mine.prune(0)
    os._exit(0)


def test_spares_of_a_dead_relay_are_swept(store: NodeStore) -> None:
    relay = server.Process(target=_leave_a_spare, args=(store.root,))
    relay.start()
    relay.join(PATIENCE_S)
    assert len(list(store.directory.iterdir())) == 1
    store.prune(2)
    assert list(store.directory.iterdir()) == []


def test_a_relay_receives_into_the_memory_of_a_version_that_it_pruned(peers: Peers) -> None:
    source, target = NodeStore(peers.root, "source"), peers.start("a")
    used: list[list[int]] = []
    for version in (1, 2, 3, 4):
        weights_id = WeightsId(1, version)
        named = [(f"t{i}", torch.full((BUCKET // 4,), float(version))) for i in range(NUM_BUCKETS)]
        manifest = source.write(weights_id, named, BUCKET)
        rendezvous = open_rendezvous("127.0.0.1")
        target.send(TransferJoin(version, *weights_id, 1, 2, rendezvous.host, rendezvous.port, rendezvous.secret))
        sending = Sending(rendezvous, 2, DEADLINE_S)
        sending.send(weights_id, source.open(weights_id).buckets(), lambda: manifest.digest, manifest.buckets)  # noqa: B023
        assert isinstance(target.recv(), Held)
        until_s = time.monotonic() + PATIENCE_S
        while len(target.store.versions()) > 2:  # it prunes once it has told
            assert time.monotonic() < until_s
            time.sleep(0.01)
        used.append(inodes(target.store, version))
        assert values(target.store.open(weights_id)) == {float(version)}
    assert used[3] == used[0] and len({tuple(files) for files in used}) == 3
