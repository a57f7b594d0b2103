"""Ending every job of a run. Owns the order: write it down, ask by id, ask by name, insist."""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable

from rollart_hpc.config.rundir import RunDir
from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.commands import Slurm
from rollart_hpc.launch.slurm.queue import job_ids, job_names, live_jobs

INSIST_S = 7.0  # a job has so long to save and end before its processes are killed
LIMIT_S = 60.0
LOOK_EVERY_S = 0.5


def cancel_jobs(run: RunDir, slurm: Slurm, say: Callable[[str], None]) -> None:
    """Returns when Slurm has none of them any more, with all their processes gone."""
    ids, names = job_ids(run), job_names(run)
    live = live_jobs(slurm, ids, names)
    if not live:
        raise UserError(f"{run.path} has no job in the queue", f"see how it ended: rollart-hpc status {run.path}")
    record.add(run, record.Cancelled())
    say(f"cancelling job {', '.join(live)}")
    slurm.ask("scancel", *live)
    if names:
        slurm.ask("scancel", f"--user={getpass.getuser()}", f"--name={','.join(names)}")
    began_s, insisted = time.monotonic(), False
    while live := live_jobs(slurm, ids, names):
        waited_s = time.monotonic() - began_s
        if waited_s > LIMIT_S:
            raise SiteError(f"job {', '.join(live)} has not ended within {LIMIT_S:g} s", "cancel once more")
        if waited_s > INSIST_S and not insisted:
            insisted = True
            slurm.ask("scancel", "--signal=KILL", "--full", *live)
        time.sleep(LOOK_EVERY_S)
