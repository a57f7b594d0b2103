"""Where processes are started. Owns the contract of a place, and the local place; knows no plan and no restart budget.

A place turns an order and a command into a child. On one machine the child is a process of the supervisor. In a job
the agents of its nodes start the processes (`launch.agents`), and nodes may come and go while the run lasts.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple, Protocol

from rollart_hpc.launch.command import environment, python
from rollart_hpc.launch.leader import find_mpiexec
from rollart_hpc.launch.plan import Proc
from rollart_hpc.launch.preloaded import NotPreloaded, Preloaded
from rollart_hpc.launch.process import Child, LocalChild, Order, end_children, open_log, start_child
from rollart_hpc.processes.lifetime import PARENT_VARIABLE
from rollart_hpc.types import Role
from rollart_hpc.wire.messages import Progress


class Came(NamedTuple):
    """Processes can be started on this node."""

    node: str
    guests: tuple[Proc, ...] = ()  # what to run there, if the plan does not know the node


class Left(NamedTuple):
    """The node is lost, and the processes on it with it: they end as orphans."""

    node: str
    reason: str


class Leaving(NamedTuple):
    """The node will be lost soon."""

    node: str
    reason: str


Change = Came | Left | Leaving


class Nodes(Protocol):
    """The nodes of a place, as they come and go."""

    def fileno(self) -> int:
        """For selectors: readable while there are changes to take."""
        ...

    def take(self) -> list[Change]: ...


class Place(Protocol):
    is_patient: bool  # a second signal does not end the run at once
    nodes: Nodes | None  # None: all nodes of the plan are always there

    def has(self, node: str) -> bool:
        """Can processes be started on this node now?"""
        ...

    def shares_fate(self, node: str) -> bool:
        """Does the whole run end with this node?"""
        ...

    def need_nodes(self) -> None:
        """The controller is up: nodes that are not there can work from now on."""
        ...

    def release(self, node: str) -> None:
        """This node, which will be lost soon, has no process anymore: it can be given back."""
        ...

    def see(self, told: Progress, now: float) -> None:
        """The controller's newest report, about once a second: how much work there is for nodes."""
        ...

    def tick(self, now: float) -> None:
        """Called about once a second."""
        ...

    def left_s(self) -> float:
        """Seconds until the run must checkpoint and leave."""
        ...

    def save_s(self, usual_s: float) -> float:
        """Seconds that the last checkpoint may take; `usual_s` if the place has no time limit."""
        ...

    def told_to_end(self) -> None:
        """The run was asked to checkpoint and end."""
        ...

    def is_closing(self) -> bool:
        """Are all processes about to be killed for good? Then there is only time to leave, not to checkpoint."""
        ...

    def start(
        self, order: Order, command: list[str], variables: dict[str, str], pass_fds: tuple[int, ...] = ()
    ) -> Child:
        """`variables`: added to the environment of the place."""
        ...

    def start_world(self, order: Order, command: list[str], variables: dict[str, str]) -> Child:
        """Start one MPI world with a rank for each seat of the order. All run the same command and end together."""
        ...

    def end(self, children: Iterable[Child], grace_s: float = 0.0, term_s: float = 0.0) -> dict[str, int]:
        """End them all and return their exit codes: wait `grace_s`, SIGTERM, wait `term_s`, SIGKILL."""
        ...


class LocalPlace:
    """This machine. The kernel ends every child when its supervisor dies.

    `roles` are forked from `preloaded`, which has done their imports; the others are started as commands.
    """

    is_patient = False
    nodes: Nodes | None = None

    def __init__(self, preloaded: Preloaded | None = None, roles: frozenset[Role] = frozenset()) -> None:
        self._preloaded, self._roles = preloaded, roles

    def has(self, node: str) -> bool:
        return True

    def shares_fate(self, node: str) -> bool:
        return True

    def need_nodes(self) -> None:
        pass

    def release(self, node: str) -> None:
        pass

    def see(self, told: Progress, now: float) -> None:
        pass

    def tick(self, now: float) -> None:
        pass

    def left_s(self) -> float:
        return math.inf

    def save_s(self, usual_s: float) -> float:
        return usual_s

    def told_to_end(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def start(
        self, order: Order, command: list[str], variables: dict[str, str], pass_fds: tuple[int, ...] = ()
    ) -> LocalChild:
        everything = environment(variables)
        if self._preloaded is not None and order.proc.role in self._roles:
            with suppress(NotPreloaded):
                return self._fork(self._preloaded, order, command, everything)
        return start_child(order, command, everything | {PARENT_VARIABLE: str(os.getpid())}, pass_fds)

    def _fork(self, preloaded: Preloaded, order: Order, command: list[str], everything: dict[str, str]) -> LocalChild:
        module, *arguments = command[command.index("-m") + 1 :]
        output = open_log(order.log)
        try:
            process = preloaded.fork(module, arguments, everything, output, output)
        finally:
            os.close(output)
        return LocalChild(order, process, os.pidfd_open(process.pid))

    def start_world(self, order: Order, command: list[str], variables: dict[str, str]) -> LocalChild:
        """Runs mpiexec, which ends all ranks when one dies."""
        launcher = [find_mpiexec(), "-n", str(len(order.seats)), *command]
        full = python("-m", "rollart_hpc.launch.leader", *launcher)
        return start_child(order, full, environment(variables) | {PARENT_VARIABLE: str(os.getpid())})

    def end(self, children: Iterable[Child], grace_s: float = 0.0, term_s: float = 0.0) -> dict[str, int]:
        return end_children(children, grace_s, term_s)
