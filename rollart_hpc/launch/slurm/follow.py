"""Follows a run on a cluster until it ends, and shows its progress. Ends nothing."""

from __future__ import annotations

import time

from rollart_hpc.errors import RollartError
from rollart_hpc.launch.screen import Screen
from rollart_hpc.launch.slurm.commands import Slurm
from rollart_hpc.launch.slurm.queue import Queue
from rollart_hpc.launch.slurm.state import StateWatch, job_state
from rollart_hpc.observe.status import read_status
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import ExitCode, RunState

LOOK_EVERY_S = 1.0


def follow(run: RunDir, job_id: int, slurm: Slurm, screen: Screen) -> int:
    """Returns the exit code of the run."""
    queue, watch, said = Queue(run), StateWatch(), ""
    while True:
        status = read_status(run.status)
        if status is not None:
            screen.show(status)
        now = job_state(run, queue)
        state = now.state or RunState.RUNNING
        is_over = watch.is_stable(now.state) and state.is_over and all(row.is_over for row in now.rows)
        text = f"{state}{': ' if now.reason else ''}{now.reason}"
        if text != said:
            said = text
            screen.say(f"job {job_id}: {text}")
        if is_over:
            is_known = state not in (RunState.FAILED, RunState.KILLED)
            return state.exit_code if is_known and state.exit_code is not None else _code_of_job(slurm, job_id)
        time.sleep(LOOK_EVERY_S)


def _code_of_job(slurm: Slurm, job_id: int) -> int:
    """The exit code of a failed job, if Slurm still knows it."""
    try:
        rows = slurm.records("show", "job", str(job_id))
        return int(rows[0].get("ExitCode", "0:0").split(":")[0]) or ExitCode.ENVIRONMENT
    except (RollartError, IndexError, ValueError):
        return ExitCode.ENVIRONMENT
