"""Runs on this machine: a launcher whose runs are processes of the command that starts them.

Owns the order of preparation: problems are found before the first role starts.
"""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress

from rollart_hpc.backends.registry import find
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import RollartError, SiteError, UserError, command_line
from rollart_hpc.extras import TRAIN, Need, need
from rollart_hpc.launch.base_model import prepare_model
from rollart_hpc.launch.changes import Proposal
from rollart_hpc.launch.launcher import Handed, NewRun, Say, Session
from rollart_hpc.launch.leader import find_mpiexec
from rollart_hpc.launch.ownership import ask_to_end, read_ownership, supervisor_pid, write_ownership
from rollart_hpc.launch.place import LocalPlace
from rollart_hpc.launch.plan_file import create_run, settle_plan
from rollart_hpc.launch.preloaded import Preloaded, preloaded_kinds, preloaded_roles
from rollart_hpc.launch.screen import Screen
from rollart_hpc.launch.status import RunStatus, View, compose
from rollart_hpc.launch.supervisor import DRAIN_S, Outcome, Supervisor
from rollart_hpc.processes.lifetime import raise_file_limit
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import ExitCode, RunState

_MARGIN_S = 30.0


class LocalWatch:
    def __init__(self, run: RunDir) -> None:
        self._run = run

    @property
    def title(self) -> str:
        return "run"

    def look(self) -> RunStatus:
        return compose(self._run, _view(self._run))

    def is_over(self, status: RunStatus) -> bool:
        return status.state.is_over

    def exit_code(self, status: RunStatus) -> int:
        return ExitCode.ENVIRONMENT if status.state.exit_code is None else status.state.exit_code


class LocalLauncher:
    is_cluster = False

    def start(self, new: NewRun, screen: Screen) -> Outcome | Handed:
        _need_backends(new.config)
        create_run(new.run, new.config, new.site, new.plan)
        screen.say(f"run directory {new.run.path}")
        return _carry_out(new.run, new.config, screen)

    def resume(self, run: RunDir, proposal: Proposal, screen: Screen) -> Outcome | Handed:
        """From the newest committed checkpoint, or from the base model if there is none."""
        pid = supervisor_pid(run)
        if pid is not None:
            fix = f"end it first: {command_line('cancel', run.path)}"
            raise UserError(f"{run.path} is still running (pid {pid})", fix)
        _need_backends(proposal.config)
        proposal.apply()
        return _carry_out(run, proposal.config, screen)

    def script(self, new: NewRun) -> str:
        raise _no_cluster(new)

    def check(self, new: NewRun, say: Say) -> str:
        raise _no_cluster(new)

    def watch(self, run: RunDir) -> LocalWatch:
        return LocalWatch(run)

    def survey(self, runs: Sequence[RunDir]) -> list[RunStatus]:
        return [LocalWatch(run).look() for run in runs]

    def account(self, status: RunStatus) -> None:
        """Nobody allocates this machine."""

    def history(self, run: RunDir) -> list[str]:
        return []

    def cancel(self, run: RunDir, say: Say) -> RunState:
        pid = ask_to_end(run)
        say(f"asked the supervisor (pid {pid}) to save a checkpoint and end the run")
        wait_for_end(pid, DRAIN_S + _MARGIN_S)
        state = self.watch(run).look().state
        if state is not RunState.KILLED:
            return state
        write_ownership(run, run.last_attempt(), (), RunState.CANCELLED, "cancelled before its processes had started")
        return RunState.CANCELLED

    def reach(self, run: RunDir, host: str, command: list[str]) -> list[str]:
        if supervisor_pid(run) is None:
            raise UserError(f"{run.path} is not running", f"see how it ended: {command_line('status', run.path)}")
        return command

    def allocate(self, new: NewRun, inside: list[str]) -> int | None:
        raise UserError(f"site {new.site.name} is one machine, not a cluster", "use: rollart-hpc run")

    def session(self, run: RunDir, *, is_guest: bool, say: Say) -> AbstractContextManager[Session]:
        raise UserError(f"{run.path} is a run on one machine", f"use: {command_line('resume', run.path)}")


def _no_cluster(new: NewRun) -> UserError:
    return UserError(
        f"site {new.site.name} is one machine, not a cluster",
        "name a cluster with --site (`rollart-hpc site init` writes a site file), or use: rollart-hpc run",
    )


# --- starting ------------------------------------------------------------------------------------


def _carry_out(run: RunDir, config: RunConfig, screen: Screen) -> Outcome:
    raise_file_limit()  # a supervisor has a descriptor for each process
    write_ownership(run, run.last_attempt(), ())  # from now on this process owns the run
    roles = preloaded_roles(config)
    preloaded = Preloaded(run.preloaded_log, preloaded_kinds(config)) if roles else None
    try:
        _prepare(run, config, screen, preloaded)
        return Supervisor(run, config, settle_plan(run), screen, LocalPlace(preloaded, roles)).supervise()
    finally:
        if preloaded is not None:
            preloaded.close()


def _prepare(run: RunDir, config: RunConfig, screen: Screen, preloaded: Preloaded | None) -> None:
    try:
        prepare_model(run, config, screen.say, preloaded)
    except RollartError as error:
        with suppress(RollartError):
            write_ownership(run, run.last_attempt(), (), RunState.FAILED, error.what)
        raise


def _need_backends(config: RunConfig) -> None:
    """Report all missing packages at once; otherwise roles would fail one by one."""
    backends = find("engine", config.engine.kind), find("trainer", config.trainer.kind)
    need(
        TRAIN,
        *(Need(backend.modules, backend.extra, backend.install) for backend in backends),
        *([Need(("peft",), "lora")] if config.trainer.lora.rank else []),
        *([Need(("mpi4py",), "mpi")] if config.weights.collective == "mpi" else []),
    )
    if config.weights.collective == "mpi":
        find_mpiexec()


# --- looking and ending --------------------------------------------------------------------------


def _view(run: RunDir) -> View:
    owner = read_ownership(run)
    if owner is None:
        return View(RunState.PREPARING)
    if owner.state is not RunState.RUNNING:
        return View(owner.state, owner.reason)
    return View(None if _is_supervised(run) else RunState.KILLED, owner.reason)


def _is_supervised(run: RunDir) -> bool:
    try:
        return supervisor_pid(run) is not None
    except UserError:
        return True  # the supervisor is on another host, so it can't be checked from here


def wait_for_end(pid: int, timeout_s: float) -> None:
    with suppress(ProcessLookupError):  # already gone
        pidfd = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        ended = poll.poll(timeout_s * 1000)
        os.close(pidfd)
        if not ended:
            raise SiteError(f"the supervisor (pid {pid}) did not end within {timeout_s:g} s", "run cancel again")
