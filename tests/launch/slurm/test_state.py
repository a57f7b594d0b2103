"""How a run on a cluster stands, as those see it who look again and again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.state import SURE_S, StateWatch, view
from rollart_hpc.launch.status import JobRow
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "a run").create()
    for line in (record.Submitting("x"), record.Submitted(12, 1, "x"), record.Began(12, 0, -1, [])):
        record.add(run, line)
    return run


def tell(run: RunDir, state: str, reason: str = "") -> None:
    owner = {"pid": 1, "start_ticks": 1, "host": "elsewhere", "state": state, "reason": reason}
    run.supervisor.write_text(json.dumps(owner))


def rows(state: str, job: int = 12) -> list[JobRow]:
    return [JobRow(f"{job}+{i}", "p", state, "", "", "", "n") for i in range(2)]


def test_an_earlier_job_does_not_tell_the_state_of_a_new_one(run: RunDir) -> None:
    tell(run, "drained", "ended by a signal")
    assert view(run, rows("RUNNING")).state == "drained", "its supervisor ends its agents now, then records the end"
    record.add(run, record.Ended(12, 0, RunState.DRAINED))
    assert view(run, rows("RUNNING")).state == "drained", "it has told its end and is still leaving"
    for line in (record.Submitting("x"), record.Submitted(20, 1, "x")):
        record.add(run, line)
    assert view(run, rows("RUNNING", 20)) == (RunState.STARTING, "", rows("RUNNING", 20))
    assert view(run, rows("PENDING", 20)).state == "pending"


def test_a_live_pid_on_this_host_says_nothing_about_a_cluster_run(run: RunDir) -> None:
    tell(run, "running")
    assert view(run, rows("RUNNING")).state is None, "as the controller says"
    assert view(run, rows("FAILED")) == (RunState.KILLED, "Slurm says FAILED", rows("FAILED"))


def test_what_was_cancelled_is_cancelled_for_no_older_reason(run: RunDir) -> None:
    tell(run, "requeued", "preempted, or requeued by a user")
    record.add(run, record.Cancelled())
    assert view(run, rows("CANCELLED"))[:2] == (RunState.CANCELLED, "")


def test_killed_is_believed_only_when_it_lasts():
    now = [0.0]
    watch = StateWatch(lambda: now[0])
    assert watch.is_stable(RunState.FINISHED) and not watch.is_stable(RunState.KILLED)
    now[0] = SURE_S - 1
    assert not watch.is_stable(RunState.KILLED)
    assert watch.is_stable(RunState.PENDING)  # it was only about to be started again
    now[0] = SURE_S + 1
    assert not watch.is_stable(RunState.KILLED)
    now[0] = 2 * SURE_S + 1
    assert watch.is_stable(RunState.KILLED)
