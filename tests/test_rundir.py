from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.rundir import COMMITTED, RunDir, known_runs, new_run_dir, open_run_dir


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_new_run_directory_is_private_and_has_an_identity(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        run = RunDir(tmp_path / "a run").create()
    finally:
        os.umask(old)
    assert mode(run.path) == 0o700 and mode(run.identity) == 0o600
    assert run.run_id == RunDir(run.path).run_id != RunDir(tmp_path / "b").create().run_id
    assert run.run_id in run.store_root.name and str(os.getuid()) in run.store_root.name


def test_an_existing_one_is_never_touched(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    before = run.run_id
    with pytest.raises(UserError, match="already exists") as caught:
        RunDir(run.path).create()
    assert "--run-dir" in caught.value.fix and "resume" in caught.value.fix
    assert run.run_id == before
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(UserError, match="already exists"):
        RunDir(file).create()


def test_an_empty_directory_will_do(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir(mode=0o755)
    assert mode(RunDir(tmp_path / "made").create().path) == 0o700


def test_attempts_count_up_and_latest_points_to_the_newest(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    assert run.last_attempt() == 0
    assert [run.begin_attempt() for _ in range(11)] == list(range(1, 12))
    assert run.latest.resolve() == run.attempt_dir(11)
    assert run.log(11, "env-0").parent.is_dir() and run.trace_part(11, "env-0").parent.is_dir()


def test_a_trainer_attempt_keeps_the_controllers_keys_and_address(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    first = run.begin_attempt()
    (run.keys(first) / "env.key").write_text("secret")
    run.controller(first).write_text("address")
    second = run.begin_attempt(under=first)
    third = run.begin_attempt(under=first)
    for attempt in (second, third):
        assert (run.keys(attempt) / "env.key").read_text() == "secret"
        assert run.controller(attempt).read_text() == "address"


def test_only_committed_checkpoints_count(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    assert run.newest_checkpoint() is None
    for name in ("step_2", "step_10", "step_11.tmp", "step_12", "other"):
        (run.checkpoints / name).mkdir()
        if name != "step_12":
            (run.checkpoints / name / COMMITTED).write_text("{}")
    assert [c.step for c in run.committed_checkpoints()] == [2, 10]
    newest = run.newest_checkpoint()
    assert newest is not None and newest.path == run.checkpoint(10)


def test_names_of_new_runs_do_not_collide(run_root: Path) -> None:
    first = new_run_dir("quickstart")
    assert first.path.parent == run_root and first.path.name.startswith("quickstart-20")
    first.create()
    assert new_run_dir("quickstart").path != first.path


def test_the_newest_run_is_the_one_created_last(run_root: Path) -> None:
    with pytest.raises(UserError, match="there are no runs"):
        known_runs()
    RunDir(run_root / "z").create()
    RunDir(run_root / "a").create()
    (run_root / "damaged").mkdir()
    (run_root / "damaged" / "run.json").write_text("{")
    assert known_runs()[0].path.name == "a"


def test_what_is_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no run directory"):
        open_run_dir(tmp_path / "gone")
    with pytest.raises(UserError, match="is not a run directory"):
        open_run_dir(tmp_path)
    (tmp_path / "run.json").write_text('{"run')
    with pytest.raises(SiteError, match="is damaged"):
        open_run_dir(tmp_path)
