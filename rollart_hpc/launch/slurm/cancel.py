"""Ends every job of a run, whatever state it is in. Owns the order: record it, ask for a checkpoint, cancel, kill.

a job that trains                   checkpoints, then ends: only the batch script gets the signal, so that Slurm's
                                    KillWait does not start; we wait as long as a supervisor may take
pending, held, requeued             removed from the queue at once; if it starts in that moment, it trains: see above
suspended, or not begun             cancelled at once: it can't save anything, and a signal would only wait
completing                          we wait
jobs that hold nodes for it         needed for the checkpoint: the supervisor ends them; cancelled at once without one
elastic workers                     cancelled at once
a run in `debug`                    checkpoints, then ends, wherever its supervisor is
being submitted, never submitted    recorded: a job that still comes is removed by the one who submits it
all that are left                   cancelled by id and by name, then killed
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Callable
from contextlib import suppress

from rollart_hpc.errors import RollartError, SiteError, UserError, command_line
from rollart_hpc.launch.ownership import has_finished, read_ownership
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError, SlurmSilent
from rollart_hpc.launch.slurm.interactive import ask_supervisor
from rollart_hpc.launch.slurm.job import END_S
from rollart_hpc.launch.slurm.queue import RUNNING, WAITING, job_ids, job_names, live_states, own_job_ids
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState

INSIST_S = 10.0  # time for Slurm to end a cancelled job before its processes are killed
LIMIT_S = 60.0
CALL_S = 10.0  # scancel repeats a request by itself while a job changes its state
LOOK_S, LOOK_RARELY_S = 0.5, 4.0  # poll intervals of the queue, at first and later
COMPLETING, SUSPENDED = "COMPLETING", "SUSPENDED"

Say = Callable[[str], None]
Live = dict[str, dict[str, str]]  # leader -> component -> state


def cancel_jobs(run: RunDir, slurm: Slurm, say: Say) -> None:
    """Returns when no job is left in Slurm and all their processes have ended."""
    ids, names = own_job_ids(run), job_names(run)

    def live() -> Live:
        return live_states(slurm, ids, names)

    found = live()
    if not found:
        _cancel_without_a_job(run, say)
        return
    if _is_written_down(run, say):
        ending = _Ending(run, slurm, say)
        _wait(live, END_S, ending.see)
    if found := live():
        say(f"cancelling job {', '.join(found)}")
        own = {str(job) for job in own_job_ids(run)}
        _scancel(slurm, *sorted(found, key=lambda job: job in own))
        if names:
            _scancel(slurm, f"--user={getpass.getuser()}", f"--name={','.join(names)}")
        _wait(live, INSIST_S)
    if found := live():
        _scancel(slurm, "--signal=KILL", "--full", *found)
        _wait(live, LIMIT_S)
    if found := live():
        raise SiteError(f"job {', '.join(found)} has not ended within {LIMIT_S:g} s", "run cancel again")


def cancel_guest(run: RunDir, say: Say) -> None:
    """End a run in the user's own job, which stays."""
    began = next((line for line in reversed(record.read(run)) if isinstance(line, record.Began)), None)
    owner = read_ownership(run)
    if began is None or owner is None or owner.state is not RunState.RUNNING:
        raise UserError(f"{run.path} is not running", f"see how it ended: {command_line('status', run.path)}")
    ask_supervisor(run, began, Slurm(), say)
    _wait(lambda: _is_supervised(run), END_S)
    if _is_supervised(run):
        raise SiteError(f"the supervisor of {run.path} did not end within {END_S:.0f} s", "run cancel again")


class _Ending:
    """Asks each job for its end in the way that its state allows, as often as that state changes."""

    def __init__(self, run: RunDir, slurm: Slurm, say: Say) -> None:
        self._run, self._slurm, self._say = run, slurm, say
        self._asked: dict[str, str] = {}  # job -> how it was asked last

    def see(self, found: Live) -> None:
        began = {str(line.job): line for line in record.read(self._run) if isinstance(line, record.Began)}
        plans = {job: self._how(next(iter(states.values())), began.get(job)) for job, states in found.items()}
        needed = {str(job) for job in record.satellites(record.read(self._run))} if "save" in plans.values() else set()
        for job, how in plans.items():
            if job in needed:
                continue  # its nodes save the checkpoint; the supervisor ends it
            if how and (how != self._asked.get(job) or how == "dequeue"):
                self._asked[job] = how
                getattr(self, f"_{how}")(job, began.get(job))

    @staticmethod
    def _how(state: str, began: record.Began | None) -> str:
        """`state`: of the first component, where the batch script runs."""
        if state in WAITING:
            return "dequeue"
        if state == COMPLETING:
            return ""
        if state != RUNNING or began is None:
            return "end"
        return "save" if began.held_by == "script" else "ask"

    def _dequeue(self, job: str, began: record.Began | None) -> None:
        _scancel(self._slurm, "--state=PENDING", job)

    def _save(self, job: str, began: record.Began | None) -> None:
        self._say(
            f"asked job {job} to save a checkpoint and end: cancelling it in {END_S:.0f} s "
            "if it has not ended (Ctrl-C only stops waiting)"
        )
        _scancel(self._slurm, "--batch", "--signal=TERM", job)

    def _ask(self, job: str, began: record.Began | None) -> None:
        assert began is not None
        ask_supervisor(self._run, began, self._slurm, self._say)
        _wait(lambda: _is_supervised(self._run), END_S)
        _scancel(self._slurm, job)

    def _end(self, job: str, began: record.Began | None) -> None:
        if began is not None:
            self._say(f"job {job} can't save a checkpoint in its state: cancelling it")
        _scancel(self._slurm, job)


def _cancel_without_a_job(run: RunDir, say: Say) -> None:
    if has_finished(run):
        raise UserError(f"{run.path} has finished: there is nothing to cancel", command_line("status", run.path))
    words = [line for line in record.read(run) if isinstance(line, (record.Submitting, record.Submitted))]
    if job_ids(run) and not isinstance(words[-1], record.Submitting):
        raise UserError(f"{run.path} has no job in the queue", f"see how it ended: {command_line('status', run.path)}")
    record.add(run, record.Cancelled())
    say("it has no job in the queue; if it is being submitted right now, that job is removed")


def _is_written_down(run: RunDir, say: Say) -> bool:
    """False if the disk is full: then no checkpoint can be saved, and a job that only gets a signal is requeued."""
    try:
        record.add(run, record.Cancelled())
    except RollartError as error:
        say(f"{error.what}: ending the run without a checkpoint")
        return False
    return True


def _is_supervised(run: RunDir) -> bool:
    owner = read_ownership(run)
    return owner is not None and owner.state is RunState.RUNNING


def _scancel(slurm: Slurm, *words: str) -> None:
    """What counts is the queue, which is looked at afterwards."""
    with suppress(SlurmSilent):
        slurm.ask("scancel", *words, limit_s=CALL_S)


def _wait(left: Callable[[], object], limit_s: float, see: Callable[[Live], None] | None = None) -> None:
    """Wait until nothing is left, or until the timeout. A slurmctld that is down for a while is waited for too."""
    deadline_s, wait_s = time.monotonic() + limit_s, LOOK_S
    while True:
        with suppress(SlurmError):
            found = left()
            if not found:
                return
            if see is not None and isinstance(found, dict):
                see(found)
        if time.monotonic() >= deadline_s:
            return
        time.sleep(wait_s)
        wait_s = min(1.5 * wait_s, LOOK_RARELY_S)
