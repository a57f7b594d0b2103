"""Requeues a job. Knows nothing about checkpoints, nor which nodes are bad.

The job is pending as soon as the request is granted, while this process still runs in it. That is when its list of
excluded nodes can be changed for all components at once.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from rollart_hpc.launch.slurm.allocation import Allocation
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError
from rollart_hpc.launch.slurm.queue import RUNNING

TRIES = 6
TRY_AGAIN_S = 5.0
LOOKS, LOOK_AGAIN_S = 5, 0.4  # for components that Slurm has not requeued; each pause is twice the one before
LEAVE_S = 10.0  # time for relays to free the memory of their nodes


def requeue(slurm: Slurm, leader: int, exclude: Iterable[str] | None, say: Callable[[str], None]) -> None:
    """Raises if Slurm refuses. Slurm ends this process soon after. `exclude`: None = keep the excluded nodes."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it comes with the requeue, before the excluded nodes are set
    for left in reversed(range(TRIES)):
        try:
            slurm.run("scontrol", "requeue", str(leader))
            break
        except SlurmError as error:
            if not left:
                raise
            say(f"requeue: {error.what}; retrying")
            time.sleep(TRY_AGAIN_S)
    if exclude is not None:
        hosts = ",".join(exclude)
        try:
            slurm.run("scontrol", "update", f"JobId={leader}", f"ExcNodeList={hosts}")
        except SlurmError as error:
            say(f"can't set the excluded nodes to {hosts or 'none'}: {error.what}")


def time_to_leave_s(slurm: Slurm, allocation: Allocation) -> float:
    """Seconds after SIGTERM at which processes must start to leave, because a cancelled job is killed KillWait after
    SIGTERM. Infinite if the job keeps running, is requeued (a checkpoint is worth more), or Slurm does not answer.
    """
    with suppress(SlurmError):
        parts = slurm.records("show", "job", str(allocation.leader))
        if any(part.get("JobState") == RUNNING for part in parts) or _is_requeued(parts, allocation):
            return math.inf
        kill_s = float(slurm.settings().get("KillWait", "30 sec").split()[0])
        return kill_s - min(LEAVE_S, kill_s / 2)
    return math.inf


def requeue_the_rest(slurm: Slurm, allocation: Allocation) -> None:
    """When a node of one component fails, Slurm (seen in 22.05) requeues that component and those before it, but not
    those after it. The job would wait forever for components that have ended. Requeueing them while they run helps.

    SIGTERM may come before Slurm has requeued anything, on a busy cluster by seconds, so it is asked more than once.
    """
    with suppress(SlurmError):
        for look in range(LOOKS):
            parts = slurm.records("show", "job", str(allocation.leader))
            is_running = any(part.get("JobState") == RUNNING for part in parts)
            if _is_requeued(parts, allocation) and is_running:
                slurm.ask("scontrol", "requeue", str(allocation.leader))  # reports errors for the others, but works
            if not is_running:
                return
            time.sleep(LOOK_AGAIN_S * 2**look)


def _is_requeued(parts: list[dict[str, str]], allocation: Allocation) -> bool:
    return any(int(part.get("Restarts", "0")) > allocation.restart for part in parts)
