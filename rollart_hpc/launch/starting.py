"""Starts what the plan has on each node. Owns what still has to start and what it waits for; restarts and ends nothing.

env, engine, reward, relay      as soon as their node is there
trainer's ranks                 when the nodes of all of them are there
relays of one MPI world         likewise; the world is one child
given up                        not before their node is another one
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.launch.crew import Crew
from rollart_hpc.launch.place import Came, Place
from rollart_hpc.launch.plan import Plan, Proc
from rollart_hpc.launch.process import CantStart
from rollart_hpc.launch.restarts import delay_s
from rollart_hpc.launch.timers import Timers
from rollart_hpc.launch.watchdog import Watchdog

Note = Callable[[str, bool], None]  # (text, whether it is news for the user)


class Starter:
    def __init__(
        self,
        plan: Plan,
        config: RunConfig,
        place: Place,
        crew: Crew,
        timers: Timers,
        watchdog: Watchdog,
        note: Note,
    ) -> None:
        self.trainer_waits = False  # for the nodes of its ranks
        self._plan, self._is_mpi = plan, config.weights.collective == "mpi"
        self._place, self._crew, self._timers, self._watchdog, self._note = place, crew, timers, watchdog, note
        self._given_up: set[str] = set()  # processes that have used up their restarts
        self._guests: dict[str, tuple[Proc, ...]] = {}  # processes of nodes that are not in the plan
        self._num_failed = 0  # starts in a row

    # --- nodes ---------------------------------------------------------------------------------

    def came(self, change: Came) -> None:
        """Nothing is started yet."""
        if change.guests:
            self._guests[change.node] = change.guests
        self._given_up -= {proc.name for proc in self._plan.on(change.node)}  # it may be another machine

    def left(self, node: str) -> None:
        self._guests.pop(node, None)

    def can_train(self) -> bool:
        """Are the nodes there without which no step can be trained?"""
        engines = [*self._plan.of("engine"), *(proc for guests in self._guests.values() for proc in guests)]
        return self._has_all(self._plan.of("trainer")) and (
            not engines or any(self._place.has(proc.node) for proc in engines)
        )

    def _has_all(self, procs: Iterable[Proc]) -> bool:
        return all(self._place.has(proc.node) for proc in procs)

    # --- starting ------------------------------------------------------------------------------

    def start_workers(self) -> None:
        for node in dict.fromkeys([*(proc.node for proc in self._plan.workers), *self._guests]):
            if self._place.has(node):
                self._start_alone(node)
        self.start_trainer()

    def start_trainer(self) -> None:
        """Its ranks, when all their nodes are there."""
        self.trainer_waits = True
        self._start_together()

    def start_on(self, node: str) -> None:
        """What can start now that this node is there."""
        self._start_alone(node)
        self._start_together()

    def start(self, proc: Proc) -> None:
        """Unless it is running or given up, or its node is lost; it is then started when the node is back."""
        if self._crew.get(proc.name) is None and proc.name not in self._given_up and self._place.has(proc.node):
            try:
                self._crew.start(proc)
            except CantStart as error:
                self._start_later(proc, error)
                return
            self._num_failed = 0
            self._watchdog.expect(proc)

    def give_up(self, proc: Proc) -> None:
        self._given_up.add(proc.name)
        self._watchdog.excuse(proc)

    def _start_alone(self, node: str) -> None:
        """What the plan has on this node, except what must start together with others."""
        for proc in (*self._plan.on(node), *self._guests.get(node, ())):
            if proc.role not in ("controller", "trainer") and not (self._has_world and proc in self._world):
                self.start(proc)

    def _start_later(self, proc: Proc, error: CantStart) -> None:
        """The machine lacks memory, processes or descriptors for the moment. Told once; the watchdog ends the wait."""
        self._num_failed += 1
        wait_s = delay_s(self._num_failed)
        self._note(f"{error}; trying again in {wait_s:g} s", self._num_failed == 1)
        self._timers.after(wait_s, partial(self.start, proc))

    def _start_together(self) -> None:
        """Start what needs several nodes, once they are all there: the trainer's ranks, the MPI world of relays."""
        relays, trainers = self._world, self._plan.of("trainer")
        if self.trainer_waits and self._has_all(trainers):
            self.trainer_waits = False
            for proc in trainers:
                self.start(proc)
        if self._has_world and not self._crew.of("relay") and self._has_all(relays):
            self._crew.start_world(relays)
            for proc in relays:
                self._watchdog.expect(proc)

    @property
    def _world(self) -> tuple[Proc, ...]:
        """Relays that can be ranks of one MPI world: those of the run's own job."""
        return tuple(proc for proc in self._plan.of("relay") if self._place.shares_fate(proc.node))

    @property
    def _has_world(self) -> bool:
        return self._is_mpi and len(self._world) > 1
