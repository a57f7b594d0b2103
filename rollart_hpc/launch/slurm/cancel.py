"""Ending every job of a run. Owns the order: write it down, ask the supervisor, ask Slurm, insist.

a run that trains                save a checkpoint, then end: a signal to the batch script alone, so that Slurm's
                                 KillWait does not run yet; waited for as long as a supervisor may take
what waits, elastic workers      cancelled at once
a run in `debug`                 the same, if its supervisor is on this machine
whatever is left                 cancelled, by id and by name; in the end killed
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable
from contextlib import suppress

from rollart_hpc.errors import RollartError, SiteError, UserError
from rollart_hpc.launch.ownership import ask_to_end, supervisor_pid
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.commands import Slurm
from rollart_hpc.launch.slurm.job import END_S
from rollart_hpc.launch.slurm.queue import job_names, live_jobs, own_job_ids
from rollart_hpc.rundir import RunDir

INSIST_S = 10.0  # Slurm has so long to end a job before its processes are killed
LIMIT_S = 60.0
LOOK_S, LOOK_RARELY_S = 0.5, 4.0  # between two looks at the queue, at first and after a while

Say = Callable[[str], None]


def cancel_jobs(run: RunDir, slurm: Slurm, say: Say) -> None:
    """Returns when Slurm has none of them any more, with all their processes gone."""
    ids, names = own_job_ids(run), job_names(run)

    def live() -> list[str]:
        return live_jobs(slurm, ids, names)

    found = live()
    if not found:
        raise UserError(f"{run.path} has no job in the queue", f"see how it ended: rollart-hpc status {run.path}")
    if _is_written_down(run, say):
        _ask_supervisor(run, slurm, found, say)
        _wait(live, END_S)
    if found := live():
        say(f"cancelling job {', '.join(found)}")
        slurm.ask("scancel", *found)
        if names:
            slurm.ask("scancel", f"--user={getpass.getuser()}", f"--name={','.join(names)}")
        _wait(live, INSIST_S)
    if found := live():
        slurm.ask("scancel", "--signal=KILL", "--full", *found)
        _wait(live, LIMIT_S)
    if found := live():
        raise SiteError(f"job {', '.join(found)} has not ended within {LIMIT_S:g} s", "run cancel again")


def _is_written_down(run: RunDir, say: Say) -> bool:
    """Else the disk is full: no checkpoint can be saved, and a job that only hears a signal would be requeued."""
    try:
        record.add(run, record.Cancelled())
    except RollartError as error:
        say(f"{error.what}: the run is ended without a checkpoint")
        return False
    return True


def _ask_supervisor(run: RunDir, slurm: Slurm, found: list[str], say: Say) -> None:
    began = {str(line.job): line for line in record.read(run) if isinstance(line, record.Began)}
    training = [job for job in found if job in began and began[job].held_by == "script"]
    if training:
        say(
            f"asked job {', '.join(training)} to save a checkpoint and end: waiting for at most {END_S:.0f} s, "
            "then it is cancelled (Ctrl-C only ends the waiting)"
        )
        slurm.ask("scancel", "--batch", "--signal=TERM", *training)
    elif any(job in began for job in found):
        _ask_debug(run, say)
    waiting = ["--state=PENDING", *training] if training else []
    others = [job for job in found if job not in training]
    for words in filter(None, (waiting, others)):
        slurm.ask("scancel", *words)


def _ask_debug(run: RunDir, say: Say) -> None:
    """It runs where its prompt is; from elsewhere only its allocation can be ended."""
    with suppress(UserError):
        pid = ask_to_end(run)
        say(f"asked the supervisor (pid {pid}) to save a checkpoint and end: waiting for at most {END_S:.0f} s")
        _wait(lambda: supervisor_pid(run), END_S)


def _wait(left: Callable[[], object], limit_s: float) -> None:
    """Until nothing is left or the time is up."""
    deadline_s, wait_s = time.monotonic() + limit_s, LOOK_S
    while left() and time.monotonic() < deadline_s:
        time.sleep(wait_s)
        wait_s = min(1.5 * wait_s, LOOK_RARELY_S)
