"""The state of a run on a cluster, from its own records and from Slurm. Only reads.

the job is pending                  pending, with Slurm's reason
the job is running                  the controller's state; starting until this start of the job has one
over, by rollart-hpc cancel         cancelled
over, recorded by the supervisor    finished, failed, drained
over, without a record              cancelled or killed, with Slurm's state
Slurm does not answer               the last recorded state
no job is known                     pending: it is being submitted, or the submission failed

Code that polls must accept `killed` only after some time (`StateWatch`): a job that Slurm is about to restart looks
killed for a moment.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable

from rollart_hpc.errors import command_line
from rollart_hpc.launch.ownership import read_ownership
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.queue import WAITING, is_over, job_ids, leader_of
from rollart_hpc.launch.status import JobRow, View
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState

SURE_S = 30.0


def view(run: RunDir, rows: list[JobRow] | None) -> View:
    """`rows`: of the newest job; None if Slurm does not answer."""
    owner = read_ownership(run)
    told, reason = (owner.state, owner.reason) if owner is not None else (None, "")
    of_controller = told is RunState.RUNNING
    if rows is None:
        return View(None if of_controller else told or RunState.PENDING, reason or "Slurm does not answer")
    records = record.read(run)
    own = [row for row in rows if not row.unit]
    live = [row for row in own if not is_over(row)]
    if live and all(row.state in WAITING for row in live):
        return View(RunState.PENDING, _why_pending(live), rows)
    if live and told is not None and told.is_over and not _has_begun(records, int(leader_of(live[0].job))):
        return View(RunState.STARTING, "", rows)  # an earlier job told that
    if live:
        return View(None if of_controller else told or RunState.STARTING, reason or _why_incomplete(rows), rows)
    if told is None and not job_ids(run) and not record.is_cancelled(records):
        fix = f"if its submission failed, submit it again: {command_line('resume', run.path)}"
        return View(RunState.PENDING, f"it has no known job; {fix}", rows)
    if told is RunState.FINISHED:
        return View(told, reason, rows)
    said = ", ".join(dict.fromkeys(row.state for row in own))
    if record.is_cancelled(records) or said == "CANCELLED":
        return View(RunState.CANCELLED, reason if told is RunState.CANCELLED else "", rows)
    if told in (None, RunState.RUNNING, RunState.REQUEUED):
        return View(RunState.KILLED, f"Slurm says {said}" if said else "Slurm no longer knows its job", rows)
    return View(told, reason, rows)


def _has_begun(records: list[record.Record], job: int) -> bool:
    """Has a supervisor begun in this job? From then on the recorded state is its own, not that of an earlier job."""
    return any(isinstance(line, record.Began) and line.job == job for line in records)


def _why_pending(live: list[JobRow]) -> str:
    """Prefers the reason of a component that does not wait for another component."""
    reasons = list(dict.fromkeys(row.reason for row in live if row.reason))
    starts = [row.start for row in live if row.start]
    estimated = f"; expected to start at {max(starts)}" if starts else ""
    return f"{', '.join(reasons) or 'waiting'}{estimated}"


def _why_incomplete(rows: list[JobRow]) -> str:
    """Which nodes the run still waits for; empty if it has all."""
    waiting = Counter((row.partition, row.reason) for row in rows if row.unit and row.state in WAITING)
    listed = [
        f"{count} job{'s' * (count > 1)} in partition {partition}" + (f", {reason}" if reason else "")
        for (partition, reason), count in waiting.items()
    ]
    return f"waiting for {'; '.join(listed)}" if listed else ""


class StateWatch:
    """Decides whether a polled state is final."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._killed_s = math.inf  # since when it has looked killed

    def is_stable(self, state: RunState | None) -> bool:
        if state is not RunState.KILLED:
            self._killed_s = math.inf
            return True
        self._killed_s = min(self._killed_s, self._clock())
        return self._clock() - self._killed_s >= SURE_S
