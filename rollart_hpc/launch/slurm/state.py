"""How a run on a cluster stands: what it wrote down and what Slurm says, as one state. Only reads.

Slurm has it pending                pending, and why
Slurm has it running                what the controller says; starting before it says anything
over, by rollart-hpc cancel         cancelled
over, and the supervisor told how   finished, failed, drained
over, and nobody told               cancelled or killed, with Slurm's word
Slurm does not answer               what was written down last
no job was ever seen                pending: it is being submitted, or that failed

Whoever looks again and again takes `killed` for the end only after a while (`StateWatch`): a job that Slurm is about to
start again looks like that for a moment.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from rollart_hpc.launch.ownership import read_ownership
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.queue import WAITING, JobRow, Queue, job_ids
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState

SURE_S = 30.0


class JobState(NamedTuple):
    state: RunState | None  # None: what the controller says
    reason: str
    rows: list[JobRow]


def job_state(run: RunDir, queue: Queue) -> JobState:
    rows = queue.rows()
    owner = read_ownership(run)
    told, reason = (owner.state, owner.reason) if owner is not None else (None, "")
    of_controller = told is RunState.RUNNING
    if rows is None:
        return JobState(None if of_controller else told or RunState.PENDING, reason or "Slurm does not answer", [])
    live = [row for row in rows if not row.is_over]
    if live and all(row.state in WAITING for row in live):
        return JobState(RunState.PENDING, _why_pending(live), rows)
    if live:
        return JobState(None if of_controller else told or RunState.STARTING, reason, rows)
    if told is None and not job_ids(run):
        fix = f"if its submission failed, go on with: rollart-hpc resume {run.path}"
        return JobState(RunState.PENDING, f"no job of it is known; {fix}", rows)
    if told is RunState.FINISHED:
        return JobState(told, reason, rows)
    said = ", ".join(dict.fromkeys(row.state for row in rows))
    if record.is_cancelled(record.read(run)) or said == "CANCELLED":
        return JobState(RunState.CANCELLED, reason, rows)
    if told in (None, RunState.RUNNING, RunState.REQUEUED):
        return JobState(RunState.KILLED, f"Slurm says {said}" if said else "Slurm has forgotten its job", rows)
    return JobState(told, reason, rows)


def _why_pending(live: list[JobRow]) -> str:
    """The component that nothing but itself holds back says most."""
    reasons = list(dict.fromkeys(row.reason for row in live if row.reason))
    starts = [row.start for row in live if row.start]
    estimated = f"; expected to start at {max(starts)}" if starts else ""
    return f"{', '.join(reasons) or 'waits'}{estimated}"


class StateWatch:
    """For a state that is looked at again and again: is it one that stays?"""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._killed_s = math.inf  # since when it has looked like that

    def is_stable(self, state: RunState | None) -> bool:
        if state is not RunState.KILLED:
            self._killed_s = math.inf
            return True
        self._killed_s = min(self._killed_s, self._clock())
        return self._clock() - self._killed_s >= SURE_S
