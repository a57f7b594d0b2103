"""Whatever fails or dies while a checkpoint is saved, removed or loaded: the run goes on from a good one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from rollart_hpc import checkpoint_dirs
from rollart_hpc.errors import DamagedError, SiteError
from rollart_hpc.roles import checkpoints
from rollart_hpc.roles.payloads import Payloads
from rollart_hpc.rundir import COMMITTED, TRAINER_PART, RunDir

from .test_checkpoints import save

OPERATIONS = ("open", "write", "fsync", "rename", "replace", "unlink", "rmdir", "mkdir")


class Killed(BaseException):
    pass


class Faults:
    """Lets the first `count` operations on files happen; the next one, and with `die` all after it, fail."""

    def __init__(self, patch: pytest.MonkeyPatch, count: int, error: BaseException, die: bool) -> None:
        self.left, self.has_failed = count, False
        for name in OPERATIONS:
            patch.setattr(os, name, self._guard(getattr(os, name), error, die))

    def _guard(self, real: Callable, error: BaseException, die: bool) -> Callable:
        def guarded(*args, **kwargs):
            self.left -= 1
            if self.left < 0 and (die or not self.has_failed):
                self.has_failed = True
                raise error
            return real(*args, **kwargs)

        return guarded


def fresh(path: Path) -> RunDir:
    """With two checkpoints, of which one will be pruned, and one of a rolled-back attempt in the way."""
    run = RunDir(path).create()
    run.ledger.write_text("{}\n")
    for version in (1, 2, 3):
        save(run, version, keep=3)
    return run


def is_good(run: RunDir, step: int) -> bool:
    snapshot = checkpoints.load(run.checkpoint(step), Payloads())
    content = (run.checkpoint(step) / TRAINER_PART / "weights").read_text()
    return snapshot["version"] == step and content == f"weights {step}"


def check_what_is_left(run: RunDir, at_least: int) -> None:
    checkpoint_dirs.sweep(run)
    steps = [c.step for c in run.committed_checkpoints()]
    assert steps and steps[-1] >= at_least
    assert all(is_good(run, step) for step in steps)
    assert sorted(p.name for p in run.checkpoints.iterdir()) == sorted(f"step_{step}" for step in steps)
    save(run, 5)
    assert run.newest_checkpoint().step == 5


@pytest.mark.parametrize("version", [3, 4])
def test_a_kill_at_any_point_of_a_save_leaves_a_good_checkpoint(tmp_path, version):
    """Version 3 replaces the checkpoint of a rolled-back attempt."""
    for count in range(500):
        run = fresh(tmp_path / f"run{count}")
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, count, Killed(), die=True)
            with suppress(Killed):
                save(run, version, keep=1)
        check_what_is_left(run, at_least=2 if version == 3 and not run.checkpoint(3).exists() else 3)
        if not faults.has_failed:
            break
    assert count > 30, "every operation had its turn"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_any_operation_that_fails_during_a_save_loses_nothing(tmp_path, number):
    for count in range(500):
        run = fresh(tmp_path / f"run{count}")
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, count, OSError(number, os.strerror(number)), die=False)
            try:
                save(run, 4, keep=1)
            except (OSError, SiteError):
                checkpoints.abandon(run, 4)
        check_what_is_left(run, at_least=3)
        if not faults.has_failed:
            break
    assert count > 30


def test_a_kill_at_any_point_of_a_sweep_is_swept_by_the_next(tmp_path):
    for count in range(500):
        run = fresh(tmp_path / f"run{count}")
        os.rename(run.checkpoint(1), run.checkpoints / "step_1.old")
        (run.checkpoint(2) / COMMITTED).unlink()
        os.rename(run.checkpoint(3), run.unfinished_checkpoint(3))  # only its last rename is missing
        run.unfinished_checkpoint(4).mkdir()
        (run.unfinished_checkpoint(4) / "core.json").write_text("{")
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, count, Killed(), die=True)
            with suppress(Killed):
                checkpoint_dirs.sweep(run)
        check_what_is_left(run, at_least=3)
        if not faults.has_failed:
            break
    assert count > 10


def test_the_new_one_is_on_the_disk_before_an_older_one_goes(tmp_path, monkeypatch):
    run = fresh(tmp_path / "run")
    done: list[tuple[str, str]] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(fd: int) -> None:
        done.append(("fsync", Path(os.readlink(f"/proc/self/fd/{fd}")).name))
        real_fsync(fd)

    def rename(source, target) -> None:
        done.append(("rename", Path(target).name))
        real_rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    save(run, 4, keep=1)
    final = done.index(("rename", "step_4"))
    assert {("fsync", "step_4.tmp"), ("fsync", TRAINER_PART)} <= set(done[:final])
    assert done[final + 1] == ("fsync", "checkpoints")
    assert [name for what, name in done[final + 2 :] if what == "rename"] == ["step_1.old", "step_2.old", "step_3.old"]


def harm(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "remove":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[:-1])
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes(content)


@pytest.mark.parametrize("how", ["remove", "cut", "flip"])
@pytest.mark.parametrize("name", [checkpoints.CORE, checkpoints.BUFFER])
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_is_used(tmp_path, name, how):
    run = fresh(tmp_path / "run")
    harm(run.checkpoint(3) / name, how)
    snapshot, found = checkpoints.load_newest(run, run.checkpoint(3), Payloads())
    assert snapshot["version"] == 2 == run.newest_checkpoint().step
    assert len(found) == 1 and name in found[0]
    assert "from the checkpoint of step 2; that of step 3 is damaged" in checkpoint_dirs.origin(run)
    assert (run.checkpoints / "step_3.bad").is_dir(), "kept for a look"
    save(run, 3, keep=1)
    assert [c.step for c in run.committed_checkpoints()] == [3] and not checkpoint_dirs.bad(run)


@pytest.mark.parametrize("how", ["remove", "cut"])
def test_a_missing_part_of_the_trainer_is_found_before_the_trainer_starts(tmp_path, how):
    run = fresh(tmp_path / "run")
    for step in (2, 3):
        harm(run.checkpoint(step) / TRAINER_PART / "weights", how)
    snapshot, found = checkpoints.load_newest(run, run.checkpoint(3), Payloads())
    assert snapshot["version"] == 1 and len(found) == 2


def test_when_all_are_damaged_the_run_does_not_begin_again_by_itself(tmp_path):
    run = fresh(tmp_path / "run")
    for step in (1, 2, 3):
        harm(run.checkpoint(step) / checkpoints.CORE, "cut")
    with pytest.raises(SiteError, match="every checkpoint of this run is damaged"):
        checkpoints.load_newest(run, run.checkpoint(3), Payloads())
    with pytest.raises(SiteError, match=r"step_1\.bad.*step_3\.bad"):
        checkpoint_dirs.must_have_one(run)


def test_trouble_with_the_file_system_is_not_damage(tmp_path, monkeypatch):
    """Otherwise a mount that is missing for a minute would cost all checkpoints."""
    run = fresh(tmp_path / "run")
    os.rename(run.checkpoints, tmp_path / "away")
    with pytest.raises(SiteError) as caught:
        checkpoints.load_newest(run, run.checkpoint(3), Payloads())
    assert not isinstance(caught.value, DamagedError)
    os.rename(tmp_path / "away", run.checkpoints)

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "not now")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        with pytest.raises(SiteError, match="can't be read"):
            checkpoints.load_newest(run, run.checkpoint(3), Payloads())
    assert is_good(run, 3)


def test_a_checkpoint_without_the_trainers_part_is_never_committed(tmp_path):
    run = fresh(tmp_path / "run")
    checkpoints.begin(run, {"version": 4, "groups": []}, Payloads())
    with pytest.raises(SiteError, match="no part of the trainer"):
        checkpoints.commit(run, 4, attempt=1, keep=2)
    assert run.newest_checkpoint().step == 3
