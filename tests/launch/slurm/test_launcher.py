"""Runs on a cluster through the contract, with a squeue that behaves as told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rollart_hpc.cli.control import _need_running
from rollart_hpc.config.load import load, load_site
from rollart_hpc.errors import UserError
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.plan_file import create_run
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.commands import SEPARATOR
from rollart_hpc.launch.slurm.launcher import SlurmLauncher
from rollart_hpc.rundir import RunDir


@pytest.fixture
def squeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Shows these jobs, and counts how often it is asked."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    calls = tmp_path / "calls"

    def put(jobs: dict[int, str]) -> Path:
        rows = [SEPARATOR.join((str(job), "cpu", state, "None", "N/A", "1:00", "n1")) for job, state in jobs.items()]
        path = tmp_path / "bin" / "squeue"
        lines = "".join(f"echo '{row}'\n" for row in rows)
        path.write_text(f"#!/bin/sh\necho >> '{calls}'\n{lines}")
        path.chmod(0o755)
        return calls

    return put


def new(path: Path, job: int, told: str = "running") -> RunDir:
    run, config, site = RunDir(path), load("quickstart"), load_site("dev")
    create_run(run, config, site, make_plan(config, site))
    for line in (record.Submitting("x"), record.Submitted(job, 1, "x"), record.Began(job, 0, -1, [])):
        record.add(run, line)
    procs = {"controller": {"pid": 1, "incarnation": "x", "attempt": 1}}
    owner = {"pid": 1, "start_ticks": 1, "host": os.uname().nodename, "state": told, "attempt": 1, "procs": procs}
    run.supervisor.write_text(json.dumps(owner))
    run.begin_attempt()
    run.status.write_text(json.dumps({"state": "running", "attempt": 1, "step": 3, "steps": 10}))
    return run


def test_a_worker_may_join_a_job_whose_pids_mean_nothing_here(tmp_path: Path, squeue) -> None:
    """The supervisor of a container or of another host has the name of this one, and a pid that is not there."""
    run, launcher = new(tmp_path / "run", 12), SlurmLauncher()
    squeue({12: "RUNNING"})
    _need_running(run, launcher)
    squeue({12: "PENDING"})
    with pytest.raises(UserError, match="is not running: it is pending") as waits:
        _need_running(run, launcher)
    assert waits.value.fix == "wait until it runs"
    squeue({12: "NODE_FAIL"})
    with pytest.raises(UserError, match="is not running: it is killed"):
        _need_running(run, launcher)


def test_all_runs_are_seen_with_one_query(tmp_path: Path, squeue) -> None:
    runs = [new(tmp_path / f"run {job}", job) for job in (12, 13, 14)]
    calls = squeue({12: "RUNNING", 13: "PENDING"})
    found = SlurmLauncher().survey(runs)
    assert [one.state for one in found] == ["running", "pending", "killed"]
    assert len(calls.read_text().splitlines()) == 1


def test_a_run_ends_with_the_state_that_was_seen_last(tmp_path: Path, squeue) -> None:
    """Its controller said "running" to the last."""
    run = new(tmp_path / "run", 12, told="failed")
    record.add(run, record.Ended(12, 0, record.RunState.FAILED))
    watch = SlurmLauncher().watch(run)
    squeue({12: "COMPLETING"})
    status = watch.look()
    assert status.state == "failed" and not watch.is_over(status), "its last lines are still to come"
    squeue({12: "FAILED"})
    watch = SlurmLauncher().watch(run)
    assert watch.is_over(watch.look()) and watch.exit_code(watch.look()) == 3
