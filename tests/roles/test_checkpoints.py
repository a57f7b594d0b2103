"""The controller's part of a checkpoint: complete, verified, never half."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

from rollart_hpc import files
from rollart_hpc.errors import SiteError
from rollart_hpc.roles import checkpoints
from rollart_hpc.roles.payloads import Payloads
from rollart_hpc.rundir import TRAINER_PART, RunDir
from rollart_hpc.trainers.chunks import groups_of
from rollart_hpc.wire.messages import Chunk, Ended, Scored


@pytest.fixture
def run(tmp_path):
    return RunDir(tmp_path / "run").create()


def payloads_with(*names: str) -> Payloads:
    payloads = Payloads()
    for name in names:
        frames = [b"transcript", np.arange(3, dtype=np.int32).tobytes(), bytes(12), bytes(12)]
        payloads.ended[name] = (Ended(name, 0, "done", "", 1, 3, [3]), frames)
    return payloads


def snapshot(version: int, *names: str) -> dict:
    return {"version": version, "groups": [{"members": [{"id": name} for name in names]}]}


def save(run: RunDir, version: int, keep: int = 2) -> None:
    directory = checkpoints.begin(run, snapshot(version, "t0", "t1"), payloads_with("t0", "t1"))
    (directory / TRAINER_PART).mkdir()
    (directory / TRAINER_PART / "weights").write_text(f"weights {version}")
    checkpoints.commit(run, version, attempt=1, keep=keep)


def test_a_saved_buffer_comes_back_as_it_was(run):
    save(run, 3)
    payloads = Payloads()
    assert checkpoints.load(run.checkpoint(3), payloads) == snapshot(3, "t0", "t1")
    assert payloads.ended["t1"] == payloads_with("t1").ended["t1"]


def test_rewards_of_turns_reach_the_trainer_also_after_a_restore(tmp_path):
    payloads = payloads_with("t0", "t1")
    payloads.scored(Scored("t0", 0, 1.0, True, 0.0, [0.25, 0.75]))
    payloads.scored(Scored("gone", 0, 1.0, True, 0.0, [1.0]))
    payloads.save(tmp_path / "payloads", ["t0", "t1"])
    restored = Payloads()
    restored.load(tmp_path / "payloads")
    for kept in (payloads, restored):
        item, frames = kept.chunk_item("t0", 4, "task", 1.0, True)
        (group,) = groups_of(Chunk(0, 0, [item], True), frames)
        assert group.samples[0].turn_rewards == [0.25, 0.75]
        assert kept.chunk_item("t1", 4, "task", 1.0, True)[0].turn_rewards == []


def test_the_ledger_is_on_the_disk_before_a_checkpoint_counts(run, monkeypatch):
    run.ledger.write_text("{}\n")
    synced = []
    monkeypatch.setattr(files.os, "fsync", lambda fd: synced.append((os.readlink(f"/proc/self/fd/{fd}"), committed())))

    def committed() -> bool:
        return run.newest_checkpoint() is not None

    save(run, 3)
    assert (str(run.ledger.resolve()), False) in synced and committed()


def test_only_the_newest_are_kept_and_an_unfinished_one_is_none(run):
    for version in (1, 2, 3):
        save(run, version)
    checkpoints.begin(run, snapshot(4), Payloads())
    assert [c.step for c in run.committed_checkpoints()] == [2, 3]


def test_a_checkpoint_of_a_rolled_back_attempt_is_replaced(run):
    save(run, 3)
    save(run, 3)
    assert run.newest_checkpoint().step == 3
    assert not list(run.checkpoints.glob("*.old"))


@pytest.mark.parametrize("name", [checkpoints.CORE, checkpoints.BUFFER])
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_damage_is_found_before_anything_is_used(run, name, damage):
    save(run, 3)
    path = run.checkpoint(3) / name
    content = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content if damage == "flip" else content[: len(content) // 2])
    payloads = Payloads()
    with pytest.raises(SiteError, match="damaged"):
        checkpoints.load(run.checkpoint(3), payloads)
    assert not payloads.ended


def test_a_head_that_is_not_ours_is_damage(run):
    save(run, 3)
    (run.checkpoint(3) / "committed.json").write_text(json.dumps({"version": 3}))
    with pytest.raises(SiteError, match="damaged"):
        checkpoints.load(run.checkpoint(3), Payloads())
