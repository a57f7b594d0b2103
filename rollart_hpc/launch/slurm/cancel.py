"""Ends every job of a run. Owns the order: record it, ask the supervisor, ask Slurm, kill.

a job that trains                checkpoints, then ends: only the batch script gets the signal, so that Slurm's KillWait
                                 does not start; we wait as long as a supervisor may take
jobs that hold nodes for it      needed for the checkpoint: the supervisor ends them; cancelled at once without one
pending jobs, elastic workers    cancelled at once
a run in `debug`                 checkpoints, then ends, if its supervisor is on this machine
all that are left                cancelled by id and by name, then killed
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

INSIST_S = 10.0  # time for Slurm to end a cancelled job before its processes are killed
LIMIT_S = 60.0
LOOK_S, LOOK_RARELY_S = 0.5, 4.0  # poll intervals of the queue, at first and later

Say = Callable[[str], None]


def cancel_jobs(run: RunDir, slurm: Slurm, say: Say) -> None:
    """Returns when no job is left in Slurm and all their processes have ended."""
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
        own = {str(job) for job in own_job_ids(run)}
        slurm.ask("scancel", *sorted(found, key=lambda job: job in own))
        if names:
            slurm.ask("scancel", f"--user={getpass.getuser()}", f"--name={','.join(names)}")
        _wait(live, INSIST_S)
    if found := live():
        slurm.ask("scancel", "--signal=KILL", "--full", *found)
        _wait(live, LIMIT_S)
    if found := live():
        raise SiteError(f"job {', '.join(found)} has not ended within {LIMIT_S:g} s", "run cancel again")


def _is_written_down(run: RunDir, say: Say) -> bool:
    """False if the disk is full: then no checkpoint can be saved, and a job that only gets a signal is requeued."""
    try:
        record.add(run, record.Cancelled())
    except RollartError as error:
        say(f"{error.what}: ending the run without a checkpoint")
        return False
    return True


def _ask_supervisor(run: RunDir, slurm: Slurm, found: list[str], say: Say) -> None:
    began = {str(line.job): line for line in record.read(run) if isinstance(line, record.Began)}
    training = [job for job in found if job in began and began[job].held_by == "script"]
    if training:
        say(
            f"asked job {', '.join(training)} to save a checkpoint and end: cancelling it in {END_S:.0f} s "
            "if it has not ended (Ctrl-C only stops waiting)"
        )
        slurm.ask("scancel", "--batch", "--signal=TERM", *training)
    elif any(job in began for job in found):
        _ask_debug(run, say)
    waiting = ["--state=PENDING", *training] if training else []
    needed = {str(job) for job in record.satellites(record.read(run))} if training else set()
    others = [job for job in found if job not in training and job not in needed]
    for words in filter(None, (waiting, others)):
        slurm.ask("scancel", *words)


def _ask_debug(run: RunDir, say: Say) -> None:
    """Its supervisor runs next to its prompt. From another host, only the allocation can be ended."""
    with suppress(UserError):
        pid = ask_to_end(run)
        say(f"asked the supervisor (pid {pid}) to save a checkpoint and end: waiting for up to {END_S:.0f} s")
        _wait(lambda: supervisor_pid(run), END_S)


def _wait(left: Callable[[], object], limit_s: float) -> None:
    """Wait until nothing is left, or until the timeout."""
    deadline_s, wait_s = time.monotonic() + limit_s, LOOK_S
    while left() and time.monotonic() < deadline_s:
        time.sleep(wait_s)
        wait_s = min(1.5 * wait_s, LOOK_RARELY_S)
