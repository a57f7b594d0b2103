"""How a run is ended in each state of its job, with a Slurm that behaves as told. A real one is in tests/slurm."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.launch.slurm import cancel, interactive, record
from rollart_hpc.launch.slurm.commands import Answer, Slurm, SlurmSilent
from rollart_hpc.launch.slurm.queue import own_job_ids
from rollart_hpc.launch.slurm.state import view
from rollart_hpc.rundir import RunDir

SAVE = ("scancel", "--batch", "--signal=TERM", "12")
IF_PENDING = ("scancel", "--state=PENDING", "12")
PLAIN = ("scancel", "12")
KILL = ("scancel", "--signal=KILL", "--full", "12")


class Told(Slurm):
    """Has job 12, in these states one after the other, until it is asked for its end in the words of `last`."""

    def __init__(self, *last: str, states: tuple[str, ...] = ("RUNNING",)) -> None:
        super().__init__()
        self.last, self.states, self.asked = last, list(states), list[tuple[str, ...]]()

    def ask(self, *command: str, **_: Any) -> Answer:
        self.asked.append(command)
        return Answer(0, "", "")

    def table(self, *_: Any) -> list[dict[str, str]]:
        if not self.last or self.last in self.asked:
            return []
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return [{"job": f"12+{i}", "name": "x", "state": state} for i in range(2)]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    for name in ("INSIST_S", "LIMIT_S", "LOOK_S", "LOOK_RARELY_S"):
        monkeypatch.setattr(cancel, name, 0.0)
    monkeypatch.setattr(cancel, "END_S", 0.05)
    run = RunDir(tmp_path / "a run").create()
    for line in (record.Submitting("x"), record.Submitted(12, 1, "x")):
        record.add(run, line)
    return run


def begin(run: RunDir, held_by: record.HeldBy = "script", job: int = 12) -> None:
    parts = [record.Part(job, "cpu", "cpu", ["n1"], 0), record.Part(job + 1, "h20", "h20", ["n2"], 1)]
    record.add(run, record.Began(job, 0, -1, parts, held_by=held_by))


def test_a_run_that_trains_is_asked_to_save_before_slurm_ends_it(run: RunDir) -> None:
    begin(run)
    slurm, said = Told(*SAVE), list[str]()
    cancel.cancel_jobs(run, slurm, said.append)
    assert slurm.asked == [SAVE] and "save a checkpoint" in said[0]
    assert record.is_cancelled(record.read(run))


def test_one_that_does_not_end_is_cancelled_then_killed(run: RunDir) -> None:
    begin(run)
    slurm = Told(*KILL)
    cancel.cancel_jobs(run, slurm, print)
    assert slurm.asked[:2] == [SAVE, PLAIN] and "--name=x,x-reward" in slurm.asked[2] and slurm.asked[3:] == [KILL]
    with pytest.raises(SiteError, match="run cancel again"):
        cancel.cancel_jobs(run, Told("never"), print)


@pytest.mark.parametrize("state", ["PENDING", "REQUEUED", "REQUEUE_HOLD"])
def test_a_requeued_run_that_waits_leaves_the_queue_without_a_signal(run: RunDir, state: str) -> None:
    """A signal to it would be repeated by scancel until our patience ends."""
    begin(run)
    slurm = Told(*IF_PENDING, states=(state,))
    cancel.cancel_jobs(run, slurm, print)
    assert slurm.asked == [IF_PENDING]


def test_one_that_starts_while_it_is_removed_is_asked_to_save(run: RunDir) -> None:
    begin(run)
    slurm = Told(*SAVE, states=("PENDING", "PENDING", "RUNNING"))
    cancel.cancel_jobs(run, slurm, print)
    assert slurm.asked == [IF_PENDING, SAVE]


def test_one_that_is_requeued_while_it_saves_leaves_the_queue(run: RunDir) -> None:
    begin(run)
    slurm = Told(*IF_PENDING, states=("RUNNING", "RUNNING", "COMPLETING", "PENDING"))
    cancel.cancel_jobs(run, slurm, print)
    assert slurm.asked == [SAVE, IF_PENDING]


@pytest.mark.parametrize("state", ["SUSPENDED", "CONFIGURING", "STOPPED"])
def test_one_that_can_t_save_is_cancelled_at_once(run: RunDir, state: str) -> None:
    begin(run)
    last = IF_PENDING if state == "CONFIGURING" else PLAIN
    slurm = Told(*last, states=(state,))
    cancel.cancel_jobs(run, slurm, print)
    assert slurm.asked == [last]


def test_one_that_is_completing_is_only_waited_for(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(run)
    monkeypatch.setattr(cancel, "END_S", 60.0)
    slurm = Told("never", states=("COMPLETING", "COMPLETING", "COMPLETING", "CANCELLED"))
    cancel.cancel_jobs(run, slurm, print)
    assert slurm.asked == []


def test_one_that_has_not_begun_has_nothing_to_save(run: RunDir) -> None:
    slurm = Told(*PLAIN)
    cancel.cancel_jobs(run, slurm, print)
    assert slurm.asked == [PLAIN]


def test_a_silent_scancel_is_no_reason_to_stop(run: RunDir) -> None:
    begin(run)

    class Silent(Told):
        def ask(self, *command: str, **_: Any) -> Answer:
            super().ask(*command)
            raise SlurmSilent("scancel did not answer")

    slurm = Silent(*PLAIN)
    cancel.cancel_jobs(run, slurm, print)
    assert slurm.asked == [SAVE, PLAIN, slurm.asked[2]] and slurm.asked[2][0] == "scancel"


def test_a_full_disk_is_no_reason_to_go_on(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(run)

    def full(*_: object) -> None:
        raise SiteError("can't write jobs.jsonl: No space left on device")

    monkeypatch.setattr(record, "add", full)
    slurm, said = Told(*PLAIN), list[str]()
    cancel.cancel_jobs(run, slurm, said.append)
    assert slurm.asked[0] == PLAIN and SAVE not in slurm.asked and "No space left" in said[0]


def test_a_run_that_was_never_submitted_is_cancelled(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run").create()
    record.add(run, record.Submitting("x"))
    cancel.cancel_jobs(run, Told(), print)
    assert view(run, []).state == "cancelled"


def test_a_finished_run_is_told_from_one_without_a_job(run: RunDir) -> None:
    with pytest.raises(UserError, match="no job in the queue"):
        cancel.cancel_jobs(run, Told(), print)
    run.supervisor.write_text(json.dumps({"pid": 1, "start_ticks": 1, "host": "h", "state": "finished"}))
    with pytest.raises(UserError, match="has finished: there is nothing to cancel"):
        cancel.cancel_jobs(run, Told(), print)
    assert not record.is_cancelled(record.read(run))


def test_a_job_of_the_user_that_the_run_was_a_guest_in_stays(run: RunDir) -> None:
    begin(run, "user", 7)
    assert record.is_guest(record.read(run)) and own_job_ids(run) == [12]
    with pytest.raises(UserError, match="is not running"):
        cancel.cancel_guest(run, print)
    record.add(run, record.Submitting("x"))
    assert not record.is_guest(record.read(run))


def test_a_supervisor_on_another_host_is_asked_there(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(run, "prompt")
    monkeypatch.setattr(interactive, "END_S", 0.0)
    owner = {"pid": os.getpid(), "start_ticks": 1, "host": "elsewhere", "state": "running"}
    run.supervisor.write_text(json.dumps(owner))
    slurm = Told(*PLAIN)
    cancel.cancel_jobs(run, slurm, print)
    srun, after = slurm.asked
    assert srun[:3] == ("srun", "--jobid=12", "--het-group=0") and "--nodelist=n1" in srun
    assert srun[-3:] == ("kill", "-TERM", str(os.getpid())) and after == PLAIN
