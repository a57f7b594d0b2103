"""The contract between the command line and what carries out a run: this machine, or a cluster.

Commands get a launcher from the site (`launcher_of`) or from a run directory (`launcher_of_run`) and never ask which
one it is. A launcher that can't do what a command wants raises a `UserError` that names the right command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Protocol

from rollart_hpc.config.launchers import LAUNCHERS
from rollart_hpc.config.resolved import read_site
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.launch.changes import Proposal
from rollart_hpc.launch.plan import Plan
from rollart_hpc.launch.screen import Screen
from rollart_hpc.launch.status import RunStatus
from rollart_hpc.launch.supervisor import Outcome
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState

Say = Callable[[str], None]


@dataclass(frozen=True)
class NewRun:
    """A run that is about to be created."""

    run: RunDir
    config: RunConfig
    site: SiteConfig
    plan: Plan


@dataclass(frozen=True)
class Handed:
    """The run was handed to a cluster and goes on by itself."""

    title: str  # job 12


class Watch(Protocol):
    """Looks at one run again and again, without asking its cluster too often."""

    @property
    def title(self) -> str:
        """What runs: job 12."""

    def look(self) -> RunStatus: ...

    def is_over(self, status: RunStatus) -> bool:
        """False while the state that was just seen may still change."""

    def exit_code(self, status: RunStatus) -> int:
        """Of a run that is over."""


class Session(Protocol):
    """A run in an interactive allocation."""

    @property
    def title(self) -> str:
        """What holds its nodes: job 12."""

    @property
    def log(self) -> Path:
        """Of its supervisor."""

    def attach(self, name: str) -> list[str]:
        """The command of a shell beside a process of the run."""


class Launcher(Protocol):
    is_cluster: bool  # runs are submitted, and go on when the command ends

    def start(self, new: NewRun, screen: Screen) -> Outcome | Handed:
        """Create the run and carry it out, or submit it."""

    def resume(self, run: RunDir, proposal: Proposal, screen: Screen) -> Outcome | Handed:
        """The same with a run that exists, after the proposed changes of its configuration."""

    def script(self, new: NewRun) -> str:
        """What would be submitted."""

    def check(self, new: NewRun, say: Say) -> str:
        """Raise if the run would be refused. Returns the expected start, which may be empty."""

    def watch(self, run: RunDir) -> Watch: ...

    def survey(self, runs: Sequence[RunDir]) -> list[RunStatus]:
        """The status of many runs, with few queries."""

    def account(self, status: RunStatus) -> None:
        """Fill in what a run that is over has used."""

    def history(self, run: RunDir) -> list[str]:
        """Lines about its earlier jobs, for `status`."""

    def cancel(self, run: RunDir, say: Say) -> RunState:
        """End the run, with a checkpoint if possible. Returns when nothing of it is left."""

    def reach(self, run: RunDir, host: str, command: list[str]) -> list[str]:
        """This command, run on a host of the run beside its processes. `host`: empty = that of the supervisor."""

    def allocate(self, new: NewRun, inside: list[str]) -> int | None:
        """Create the run, request its nodes and run a command there. None: this process is already on such nodes."""

    def session(self, run: RunDir, *, is_guest: bool, say: Say) -> AbstractContextManager[Session]:
        """Start the run on the nodes of this allocation. `is_guest`: they stay when the session ends."""


@cache
def _find(name: str) -> Launcher:
    module, _, kind = LAUNCHERS[name].path.partition(":")
    launcher: Launcher = getattr(import_module(module), kind)()
    return launcher


def launcher_of(site: SiteConfig) -> Launcher:
    return _find(site.launcher)


def launcher_of_run(run: RunDir) -> Launcher:
    """Decided by the run's site, because there may be no job yet, or no record of one."""
    return _find(read_site(run.site).launcher if run.site.exists() else SiteConfig.launcher)


def run_status(run: RunDir) -> RunStatus:
    return launcher_of_run(run).watch(run).look()
