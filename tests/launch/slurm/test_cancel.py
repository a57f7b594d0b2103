"""The order in which a run is ended, with a Slurm that behaves as told. A real one is in tests/slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.launch.slurm import cancel, record
from rollart_hpc.launch.slurm.commands import Answer, Slurm
from rollart_hpc.launch.slurm.queue import own_job_ids
from rollart_hpc.rundir import RunDir

SAVE = ("scancel", "--batch", "--signal=TERM", "12")
IF_PENDING = ("scancel", "--state=PENDING", "12")
PLAIN = ("scancel", "12")
KILL = ("scancel", "--signal=KILL", "--full", "12")


class Told(Slurm):
    """Has job 12 until it is asked for its end in these words."""

    def __init__(self, *last: str) -> None:
        super().__init__()
        self.last, self.asked = last, list[tuple[str, ...]]()

    def ask(self, *command: str, **_: Any) -> Answer:
        self.asked.append(command)
        return Answer(0, "", "")

    def table(self, *_: Any) -> list[dict[str, str]]:
        return [] if not self.last or self.last in self.asked else [{"job": "12+0", "name": "x", "state": "RUNNING"}]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    for name in ("END_S", "INSIST_S", "LIMIT_S", "LOOK_S", "LOOK_RARELY_S"):
        monkeypatch.setattr(cancel, name, 0.0)
    run = RunDir(tmp_path / "run").create()
    for line in (record.Submitting("x"), record.Submitted(12, 1, "x")):
        record.add(run, line)
    return run


def begin(run: RunDir, held_by: record.HeldBy = "script", job: int = 12) -> None:
    record.add(run, record.Began(job, 0, -1, [], held_by=held_by))


def test_a_run_that_trains_is_asked_to_save_before_slurm_ends_it(run: RunDir) -> None:
    begin(run)
    slurm, said = Told(*SAVE), list[str]()
    cancel.cancel_jobs(run, slurm, said.append)
    assert slurm.asked == [SAVE, IF_PENDING] and "save a checkpoint" in said[0]
    assert record.is_cancelled(record.read(run))


def test_one_that_does_not_end_is_cancelled_then_killed(run: RunDir) -> None:
    begin(run)
    slurm = Told(*KILL)
    cancel.cancel_jobs(run, slurm, print)
    assert (
        slurm.asked[:3] == [SAVE, IF_PENDING, PLAIN]
        and "--name=x,x-reward" in slurm.asked[3]
        and slurm.asked[4:] == [KILL]
    )
    with pytest.raises(SiteError, match="run cancel again"):
        cancel.cancel_jobs(run, Told("never"), print)


def test_one_that_has_not_begun_has_nothing_to_save(run: RunDir) -> None:
    slurm = Told(*PLAIN)
    cancel.cancel_jobs(run, slurm, print)
    assert slurm.asked == [PLAIN]


def test_a_full_disk_is_no_reason_to_go_on(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(run)

    def full(*_: object) -> None:
        raise SiteError("can't write jobs.jsonl: No space left on device")

    monkeypatch.setattr(record, "add", full)
    slurm, said = Told(*PLAIN), list[str]()
    cancel.cancel_jobs(run, slurm, said.append)
    assert slurm.asked[0] == PLAIN and SAVE not in slurm.asked and "No space left" in said[0]


def test_a_job_of_the_user_that_the_run_was_a_guest_in_stays(run: RunDir) -> None:
    begin(run, "user", 7)
    assert record.is_guest(record.read(run)) and own_job_ids(run) == [12]
    record.add(run, record.Submitting("x"))
    assert not record.is_guest(record.read(run))
    with pytest.raises(UserError, match="no job in the queue"):
        cancel.cancel_jobs(run, Told(), print)
