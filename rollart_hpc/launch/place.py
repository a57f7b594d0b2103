"""Where processes are started. Owns the contract of a place and the local one; knows no plan and no budget of restarts.

A place turns an order and a command into a child: a process of this machine that lives as long as the one it
stands for. Locally that is the process itself; elsewhere it is whatever carries it (an `srun`), so the supervisor
watches, signals and reaps all of them alike.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Protocol

from rollart_hpc.launch.command import python
from rollart_hpc.launch.leader import find_mpiexec
from rollart_hpc.launch.preloaded import NotPreloaded, Preloaded
from rollart_hpc.launch.process import Child, Order, end_children, open_log, start_child
from rollart_hpc.processes.lifetime import PARENT_VARIABLE
from rollart_hpc.types import Role


class Place(Protocol):
    is_patient: bool  # a second signal does not end the run at once

    def left_s(self) -> float:
        """How long the run may stay before it has to save and go."""
        ...

    def save_s(self, usual_s: float) -> float:
        """How long a checkpoint may take now that the time is up; `usual_s` where time is not limited."""
        ...

    def told_to_end(self) -> None:
        """The run was asked to save and go."""
        ...

    def is_closing(self) -> bool:
        """Is every process about to be killed for good, so that there is no time left but for leaving?"""
        ...

    def start(
        self, order: Order, command: list[str], environment: dict[str, str], pass_fds: tuple[int, ...] = ()
    ) -> Child: ...

    def start_world(self, order: Order, command: list[str], environment: dict[str, str]) -> Child:
        """One MPI world with a rank for every seat of the order; all run the same command. It ends as a whole."""
        ...

    def end(self, children: Iterable[Child], grace_s: float = 0.0, term_s: float = 0.0) -> dict[str, int]:
        """End them all and return their exit codes: wait `grace_s`, SIGTERM, wait `term_s`, SIGKILL."""
        ...


class LocalPlace:
    """This machine. The kernel ends every child with its supervisor.

    Roles that `preloaded` has the imports of are forked from it, the others started as commands.
    """

    is_patient = False

    def __init__(self, preloaded: Preloaded | None = None, roles: frozenset[Role] = frozenset()) -> None:
        self._preloaded, self._roles = preloaded, roles

    def left_s(self) -> float:
        return math.inf

    def save_s(self, usual_s: float) -> float:
        return usual_s

    def told_to_end(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def start(
        self, order: Order, command: list[str], environment: dict[str, str], pass_fds: tuple[int, ...] = ()
    ) -> Child:
        if self._preloaded is not None and order.proc.role in self._roles:
            with suppress(NotPreloaded):
                return self._fork(self._preloaded, order, command, environment)
        return start_child(order, command, environment | {PARENT_VARIABLE: str(os.getpid())}, pass_fds)

    def _fork(self, preloaded: Preloaded, order: Order, command: list[str], environment: dict[str, str]) -> Child:
        module, *arguments = command[command.index("-m") + 1 :]
        output = open_log(order.log)
        try:
            process = preloaded.fork(module, arguments, environment, output, output)
        finally:
            os.close(output)
        return Child(order, process, os.pidfd_open(process.pid))

    def start_world(self, order: Order, command: list[str], environment: dict[str, str]) -> Child:
        """By mpiexec, which ends all ranks when one dies."""
        launcher = [find_mpiexec(), "-n", str(len(order.seats)), *command]
        full = python("-m", "rollart_hpc.launch.leader", *launcher)
        return start_child(order, full, environment | {PARENT_VARIABLE: str(os.getpid())})

    def end(self, children: Iterable[Child], grace_s: float = 0.0, term_s: float = 0.0) -> dict[str, int]:
        return end_children(children, grace_s, term_s)
