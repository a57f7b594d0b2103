"""How trainer ranks find each other, and what a process without their secret achieves."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rollart_hpc.files import read_json, write_json
from rollart_hpc.trainers import world as worlds
from rollart_hpc.weights import proofs
from rollart_hpc.weights.meeting import new_secret
from tests.processes import server

PATIENCE_S = 120.0


def _rank(rank: int, size: int, rendezvous: Path, results: Any, is_stranger: bool) -> None:
    """Forms the world and a smaller group by name, as libraries do; reports how many groups were proven."""
    proven: list[int] = []

    def counted(group: Any, store: Any, secret: str, deadline: Any) -> None:
        proofs.prove(group, store, new_secret() if is_stranger else secret, deadline)
        proven.append(group.size())

    worlds.prove = counted
    try:
        world = worlds.open_world(rank, size, "cpu", rendezvous)
        small = dist.new_group([0, 1], backend="gloo")
        if rank < 2:
            dist.all_reduce(torch.ones(1), group=small)
        results.put((rank, proven, [bytes(frame) for frame in world.broadcast([b"a", b"bc"] if rank == 0 else None)]))
        world.close()
    except Exception as error:
        results.put((rank, proven, f"{type(error).__name__}: {error}"))


def _run(size: int, rendezvous: Path, strangers: set[int]) -> dict[int, tuple[list[int], Any]]:
    results = server.Queue()
    ranks = [
        server.Process(target=_rank, args=(rank, size, rendezvous, results, rank in strangers), daemon=True)
        for rank in range(size)
    ]
    for process in ranks:
        process.start()
    found = {}
    for _ in range(size):
        rank, proven, result = results.get(timeout=PATIENCE_S)
        found[rank] = proven, result
    for process in ranks:
        process.join(PATIENCE_S)
    assert [process.exitcode for process in ranks] == [0] * size
    return found


def test_every_gloo_group_of_a_trainer_is_proven_also_those_of_libraries(tmp_path: Path) -> None:
    found = _run(3, tmp_path / "rendezvous.json", set())
    assert found == {0: ([3, 2], [b"a", b"bc"]), 1: ([3, 2], [b"a", b"bc"]), 2: ([3], [b"a", b"bc"])}
    file = tmp_path / "rendezvous.json"
    assert file.stat().st_mode & 0o077 == 0, "it holds the secret"


def test_a_rank_without_the_secret_gets_no_group(tmp_path: Path) -> None:
    found = _run(2, tmp_path / "rendezvous.json", {1})
    assert all(proven == [] and "without the secret" in str(result) for proven, result in found.values())


def test_a_stale_rendezvous_file_is_read_again(tmp_path: Path) -> None:
    """It names a port on which nobody, or somebody else, listens now."""
    rendezvous = tmp_path / "rendezvous.json"
    store = worlds._open_store(rendezvous, "127.0.0.1")
    right = read_json(rendezvous)
    assert right is not None
    write_json(rendezvous, {**right, "secret": new_secret()})
    joined: list[Any] = []
    thread = threading.Thread(target=lambda: joined.append(worlds._join_store(rendezvous)), daemon=True)
    thread.start()
    write_json(rendezvous, right)
    thread.join(PATIENCE_S)
    joined[0].set("key", "value")
    assert store.get("key") == b"value"
    joined[0].close()
    store.close()


def test_on_gpus_the_models_collectives_have_a_timeout_and_our_own_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPU is needed: torch is asked, not used."""
    asked: list[tuple[str, float]] = []
    used: list[Any] = []
    monkeypatch.setattr(worlds, "pick_device", lambda *_: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)

    def open_default(backend: str, *, timeout: Any, **_: Any) -> None:
        asked.append((backend, timeout.total_seconds()))

    def open_patient(*, backend: str, timeout: Any) -> str:
        asked.append((backend, timeout.total_seconds()))
        return "patient"

    monkeypatch.setattr(dist, "init_process_group", open_default)
    monkeypatch.setattr(dist, "new_group", open_patient)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, op, group: used.append(group))
    monkeypatch.setattr(dist, "broadcast", lambda tensor, src, group: used.append(group))
    world = replace(worlds.open_world(0, 1, "auto"), size=2)
    (models, model_s), (ours, own_s) = asked
    assert (models, ours) == ("cpu:gloo,cuda:nccl", "gloo")
    assert 600 <= model_s <= 1800 and own_s > 1e6
    world.sum([1.0])
    world.broadcast([b"frame"])
    assert used == ["patient"] * 3
