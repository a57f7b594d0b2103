"""Having Slurm start a job again. Owns that request, and which nodes it must not use; knows nothing of checkpoints.

The job is pending from the moment the request is granted, while this process is still in it: that is when its list of
excluded nodes can be changed, for all components at once.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from rollart_hpc.config.site import SiteConfig
from rollart_hpc.launch.slurm.allocation import Allocation
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError

TRIES = 6
TRY_AGAIN_S = 5.0
_BAD_STATES = ("down", "drain", "fail", "unknown")


def requeue(slurm: Slurm, leader: int, exclude: Iterable[str], say: Callable[[str], None]) -> None:
    """Raises if Slurm won't. This process is ended by Slurm soon after."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # comes with the requeue; there is one thing left to say
    for left in reversed(range(TRIES)):
        try:
            slurm.run("scontrol", "requeue", str(leader))
            break
        except SlurmError as error:
            if not left:
                raise
            say(f"requeue: {error.what}; trying again")
            time.sleep(TRY_AGAIN_S)
    hosts = ",".join(sorted(set(exclude)))
    if hosts:
        try:
            slurm.run("scontrol", "update", f"JobId={leader}", f"ExcNodeList={hosts}")
        except SlurmError as error:
            say(f"can't exclude {hosts}: {error.what}")


def requeue_the_rest(slurm: Slurm, allocation: Allocation) -> None:
    """When a node of one component fails Slurm (seen in 22.05) requeues that one and those before it, but not those
    after it: the job would wait for ever for components that have ended. They join it if asked for while they run.
    """
    with suppress(SlurmError):
        parts = slurm.records("show", "job", str(allocation.leader))
        is_requeued = any(int(part.get("Restarts", "0")) > allocation.restart for part in parts)
        if is_requeued and any(part.get("JobState") == "RUNNING" for part in parts):
            slurm.ask("scontrol", "requeue", str(allocation.leader))  # says no for the others, but does it


def bad_nodes(slurm: Slurm, hosts: Iterable[str]) -> dict[str, str]:
    """Which of these nodes Slurm itself would not use, with the reason."""
    listed = ",".join(sorted(set(hosts)))
    if not listed:
        return {}
    fields = {"host": "%N", "state": "%T", "reason": "%E"}
    rows = slurm.table("sinfo", fields, "--Node", "--nodes", listed)
    found = [row for row in rows if row["state"].lower().startswith(_BAD_STATES)]
    return {row["host"]: f"{row['state']}: {row['reason']}" for row in found}


def always_excluded(site: SiteConfig) -> list[str]:
    return [site.options(name).exclude for name in site.classes if site.options(name).exclude]
