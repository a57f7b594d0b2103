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

from rollart_hpc.launch.ownership import RUNNING, read_ownership
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.queue import JobRow, Queue, job_ids
from rollart_hpc.rundir import RunDir

SURE_S = 30.0
PENDING_STATES = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING", "RESV_DEL_HOLD")


class JobState(NamedTuple):
    state: str  # "" = what the controller says
    reason: str
    rows: list[JobRow]


def job_state(run: RunDir, queue: Queue) -> JobState:
    rows = queue.rows()
    owner = read_ownership(run)
    told, reason = str(owner.get("state", "")), str(owner.get("reason", ""))
    if rows is None:
        return JobState("" if told == RUNNING else told or "pending", reason or "Slurm does not answer", [])
    live = [row for row in rows if not row.is_over]
    if live and all(row.state in PENDING_STATES for row in live):
        return JobState("pending", _why_pending(live), rows)
    if live:
        return JobState("" if told == RUNNING else told or "starting", reason, rows)
    if not told and not job_ids(run):
        fix = f"if its submission failed, go on with: rollart-hpc resume {run.path}"
        return JobState("pending", f"no job of it is known; {fix}", rows)
    if told == "finished":
        return JobState(told, reason, rows)
    said = ", ".join(dict.fromkeys(row.state for row in rows))
    if record.is_cancelled(record.read(run)) or said == "CANCELLED":
        return JobState("cancelled", reason, rows)
    if told in ("", RUNNING, "requeued"):
        return JobState("killed", f"Slurm says {said}" if said else "Slurm has forgotten its job", rows)
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

    def is_stable(self, state: str) -> bool:
        if state != "killed":
            self._killed_s = math.inf
            return True
        self._killed_s = min(self._killed_s, self._clock())
        return self._clock() - self._killed_s >= SURE_S
