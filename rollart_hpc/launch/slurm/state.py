"""The state of a run on a cluster, from its own records and from Slurm. Only reads.

the job is pending                  pending, with Slurm's reason
the job is running                  the controller's state; starting until it has one
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
from typing import NamedTuple

from rollart_hpc.launch.ownership import read_ownership
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.queue import WAITING, JobRow, Queue, job_ids
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState

SURE_S = 30.0


class JobState(NamedTuple):
    state: RunState | None  # None: use the controller's state
    reason: str
    rows: list[JobRow]


def job_state(run: RunDir, queue: Queue) -> JobState:
    rows = queue.rows()
    owner = read_ownership(run)
    told, reason = (owner.state, owner.reason) if owner is not None else (None, "")
    of_controller = told is RunState.RUNNING
    if rows is None:
        return JobState(None if of_controller else told or RunState.PENDING, reason or "Slurm does not answer", [])
    own = [row for row in rows if not row.unit]
    live = [row for row in own if not row.is_over]
    if live and all(row.state in WAITING for row in live):
        return JobState(RunState.PENDING, _why_pending(live), rows)
    if live:
        return JobState(None if of_controller else told or RunState.STARTING, reason or _why_incomplete(rows), rows)
    if told is None and not job_ids(run):
        fix = f"if its submission failed, submit it again: rollart-hpc resume {run.path}"
        return JobState(RunState.PENDING, f"it has no known job; {fix}", rows)
    if told is RunState.FINISHED:
        return JobState(told, reason, rows)
    said = ", ".join(dict.fromkeys(row.state for row in own))
    if record.is_cancelled(record.read(run)) or said == "CANCELLED":
        return JobState(RunState.CANCELLED, reason, rows)
    if told in (None, RunState.RUNNING, RunState.REQUEUED):
        return JobState(RunState.KILLED, f"Slurm says {said}" if said else "Slurm no longer knows its job", rows)
    return JobState(told, reason, rows)


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
