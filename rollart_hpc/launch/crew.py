"""The live processes of a run. Starts them as planned and keeps supervisor.json up to date; decides nothing.

The place (`launch.place`) decides where a process runs.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable, Iterable
from functools import partial

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.launch.command import role_command, role_variables
from rollart_hpc.launch.ownership import write_ownership
from rollart_hpc.launch.place import Place
from rollart_hpc.launch.plan import Proc
from rollart_hpc.launch.process import Child, Order
from rollart_hpc.rundir import RunDir
from rollart_hpc.types import Role

RELAY_WORLD = "relays"


class Crew:
    def __init__(
        self,
        run: RunDir,
        config: RunConfig,
        place: Place,
        selector: selectors.BaseSelector,
        on_end: Callable[[Child], None],
    ) -> None:
        """`on_end` is the selector's callback for a process that has ended; it must call `take_out` and reap."""
        self._run, self._config, self._place = run, config, place
        self._selector, self._on_end = selector, on_end
        self._children: dict[str, Child] = {}
        self._is_written = True
        self.attempt = 0  # of processes started from now on
        self.address = ""  # of the controller

    def __contains__(self, child: Child) -> bool:
        return self._children.get(child.name) is child

    def get(self, name: str) -> Child | None:
        return self._children.get(name)

    def behind(self, name: str, incarnation: str) -> Child | None:
        """The child that is this process, or that runs it (`srun`, `mpiexec`)."""
        members = ((child, proc.name, known) for child in self.all() for proc, known in child.order.members)
        return next((child for child, *member in members if member == [name, incarnation]), None)

    def all(self) -> list[Child]:
        return list(self._children.values())

    def of(self, role: Role) -> list[Child]:
        return [child for child in self._children.values() if child.proc.role == role]

    def start(self, proc: Proc, *extra: str, pass_fds: tuple[int, ...] = ()) -> None:
        order = Order(proc, self.attempt, self._run.log(self.attempt, proc.name))
        newest = self._run.newest_checkpoint() if proc.role in ("controller", "trainer") else None
        command = role_command(
            order,
            self._run,
            address="" if proc.role == "controller" else self.address,
            checkpoint=newest.path if newest else None,
        )
        self._add(self._place.start(order, [*command, *extra], role_variables(proc, self._config), pass_fds))

    def start_world(self, relays: tuple[Proc, ...]) -> None:
        """Start all relays as the ranks of one MPI world, which is one child. Each rank has its own log."""
        proc = Proc(RELAY_WORLD, "relay", relays[0].hardware, "")
        order = Order(proc, self.attempt, self._run.log(self.attempt, proc.name), seats=relays)
        command = role_command(order, self._run, address=self.address)
        self._add(self._place.start_world(order, command, role_variables(proc, self._config)))

    def _add(self, child: Child) -> None:
        self._children[child.name] = child
        self._selector.register(child, selectors.EVENT_READ, partial(self._on_end, child))
        self._is_written = False

    def take_out(self, child: Child) -> Child:
        """Stop watching it; the caller ends or reaps it."""
        del self._children[child.name]
        self._selector.unregister(child)
        self._is_written = False
        return child

    def end(self, children: Iterable[Child], grace_s: float = 0.0, term_s: float = 0.0) -> list[tuple[Child, int]]:
        """End these processes. Returns each with its exit code."""
        taken = [self.take_out(child) for child in children]
        codes = self._place.end(taken, grace_s, term_s)
        return [(child, codes[child.name]) for child in taken]

    def changed(self) -> None:
        """The process ids of a child became known."""
        self._is_written = False

    def write(self) -> None:
        """Called in every turn of the supervisor's loop: thousands of processes that start at once are one write."""
        if not self._is_written:
            write_ownership(self._run, self.attempt, self._children.values())
            self._is_written = True
