"""A user's mistake is exit code 2, the machine's is 3; both are one message, and nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollart_hpc.rundir import COMMITTED, RunDir

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def assert_refused(done: subprocess.CompletedProcess[str], code: int, *texts: str) -> None:
    assert "Traceback" not in done.stderr + done.stdout
    for text in texts:
        assert text in done.stderr, done.stderr
    assert done.returncode == code, done.stderr


def test_unknown_key_and_bad_value(cli: Cli, run_file: Path, run_root: Path) -> None:
    done = cli("run", run_file, "--quiet", "flow.alhpa=2", "steps=many")
    assert_refused(done, 2, "flow.alhpa: unknown key (value 2); did you mean flow.alpha?", "steps: 'many' is text")
    assert not run_root.exists()


def test_code_that_does_not_fit_is_told_with_everything_else(cli: Cli, run_file: Path, run_root: Path) -> None:
    wrong = ["tasks.lake.params.size=3", "tasks.lake.reward=lake.py:scroe", "steps=many"]
    for command in ("check", "run"):
        done = cli(command, run_file, *wrong)
        assert_refused(
            done, 2, "3 problems", "steps: 'many' is text", "tasks.lake.params.size: Lake has no such argument"
        )
        assert "lake.py has no scroe; choose one of: Lake, score" in done.stderr
    assert_refused(cli("run", run_file, "model.kind=tiny"), 2, "tasks.lake.environment: Lake has no legal_answer(rng)")
    assert not run_root.exists()


def test_missing_files(cli: Cli, run_root: Path) -> None:
    assert_refused(cli("run", "./gone.yaml"), 2, "there is no run file")
    assert_refused(cli("run", "quickstrat"), 2, "did you mean quickstart?")
    assert not run_root.exists()


def test_existing_run_directory(cli: Cli, run_file: Path, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.tex").write_text("years of work")
    assert_refused(cli("run", run_file, "--run-dir", theirs), 2, "already exists", "choose another --run-dir", "resume")
    assert [path.name for path in theirs.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("command", ["resume", "status", "logs", "cancel", "report"])
def test_no_run_directory(cli: Cli, command: str, tmp_path: Path) -> None:
    assert_refused(cli(command, tmp_path / "gone"), 2, "there is no run directory")
    assert_refused(cli(command, tmp_path), 2, "is not a run directory")


def test_unknown_arguments(cli: Cli, run: RunDir) -> None:
    assert_refused(cli("status", run.path, "extra"), 2, "unrecognized arguments: extra")
    assert_refused(cli("run", "quickstart", "--fast"), 2, "unrecognized arguments: --fast")
    assert_refused(cli("join", run.path, "trainer"), 2, "invalid choice: 'trainer'")


def test_commands_for_a_run_that_is_not_running(cli: Cli, run: RunDir) -> None:
    assert_refused(cli("cancel", run.path), 2, "is not running")
    owner = {"pid": 1, "start_ticks": 1, "host": os.uname().nodename, "state": "running", "attempt": 1, "procs": {}}
    run.supervisor.write_text(json.dumps(owner))
    assert_refused(cli("cancel", run.path), 2, "is not running")
    assert_refused(cli("join", run.path, "env"), 2, "is not running")
    run.supervisor.write_text(json.dumps({**owner, "state": "finished"}))
    assert_refused(cli("resume", run.path), 2, "has finished all")


def test_a_damaged_checkpoint_is_named_and_kept(cli: Cli, run: RunDir) -> None:
    checkpoint = run.checkpoint(3)
    checkpoint.mkdir()
    (checkpoint / COMMITTED).write_text("{}")
    (checkpoint / "core.json").write_text('{"version": 3, "gro')
    done = cli("resume", run.path, "--quiet")
    assert_refused(done, 3, f"checkpoint {checkpoint} is damaged", "-> ")
    assert (checkpoint.with_name("step_3.bad") / "core.json").exists()
    assert json.loads(run.supervisor.read_text())["state"] == "failed"


def test_a_damaged_config_is_the_machines_fault(cli: Cli, run: RunDir) -> None:
    run.config.write_text("steps: [")
    assert_refused(cli("resume", run.path), 3, "config.yaml is damaged")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one page, where root may mount one."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=64", "tmpfs", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_full_disk_before_the_run(cli: Cli, run_file: Path, small_disk: Path) -> None:
    (small_disk / "filler").write_bytes(b"x" * 4096)
    done = cli("run", run_file, "--run-dir", small_disk / "run")
    assert_refused(done, 3, "No space left on device", "free some space")
    assert [path.name for path in small_disk.iterdir()] == ["filler"], "the next try finds a clean place"


def test_a_disk_that_fills_up_during_preparation(cli: Cli, run_file: Path, small_disk: Path) -> None:
    done = cli("run", run_file, "--run-dir", small_disk / "run")
    assert_refused(done, 3, "No space left on device", "free some space")


def test_a_place_where_nobody_may_write(cli: Cli, run_file: Path) -> None:
    done = cli("run", run_file, "--run-dir", "/proc/rollart")
    assert done.returncode == 3 and "Traceback" not in done.stderr and "can't write /proc/rollart" in done.stderr


def test_programs_are_told_why_in_json(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("steps: [")
    checked = json.loads(cli("check", "broken.yaml", "--json").stdout)
    assert not checked["good"] and "broken.yaml" in checked["problems"][0]
    planned = cli("plan", "nowhere.yaml", "--json")
    assert planned.returncode == 2 and "nowhere.yaml" in json.loads(planned.stdout)["error"]
