"""The processes of an agent's node, on the word of one supervisor. Owns the loop that obeys it; finds no supervisor.

The next supervisor gets a new keeper, without processes.
"""

from __future__ import annotations

import logging
import selectors
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rollart_hpc.errors import RollartError, UserError
from rollart_hpc.launch.agents import resources
from rollart_hpc.launch.command import python
from rollart_hpc.launch.place import LocalPlace
from rollart_hpc.launch.plan import Proc
from rollart_hpc.launch.process import LocalChild, Order
from rollart_hpc.launch.signals import Signals
from rollart_hpc.launch.timers import Timers
from rollart_hpc.processes.lifetime import STAYS_VARIABLE
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import ExitCode
from rollart_hpc.wire.link import Link, LinkClosed, Received
from rollart_hpc.wire.messages import (
    Await,
    Declined,
    Died,
    EndProcess,
    Launch,
    Launched,
    Offer,
    Signalled,
    Stop,
    Warned,
    WhoAreYou,
    clip,
)

LOOK_EVERY_S = 10.0  # for a newer supervisor

log = logging.getLogger("agent")


class Keeper:
    def __init__(
        self,
        run: RunDir,
        link: Link,
        offer: Offer,
        place: LocalPlace,
        caches: Path,
        cores: resources.Cores,
        is_outdated: Callable[[], bool],
    ) -> None:
        """`is_outdated`: has another supervisor taken over from that of the link?"""
        self._run, self._link, self._offer, self._place, self._caches = run, link, offer, place, caches
        self._is_outdated = is_outdated
        self._stores: dict[str, str] = {}  # by node: incarnation of its relay
        self._selector = selectors.DefaultSelector()
        self._signals = Signals()
        self._cores = cores
        self._children: dict[tuple[str, str], LocalChild] = {}
        self._cpus: dict[tuple[str, str], set[int]] = {}
        self._timers = Timers()
        self._num_out_of_memory = resources.num_killed_for_memory()
        self._is_over = False
        self._may_follow = False  # another supervisor

    def run(self) -> bool:
        """Until the supervisor says so, or is gone. Leaves no process behind. Returns whether to wait for the next."""
        try:
            with self._signals:
                self._selector.register(self._signals, selectors.EVENT_READ, self._signalled)
                self._selector.register(self._link, selectors.EVENT_READ, self._hear)
                self._link.send(self._offer)
                self._after(LOOK_EVERY_S, self._look)
                while not self._is_over:
                    self._turn()
        finally:
            self._end_all()
        return self._may_follow

    def _look(self) -> None:
        if self._is_outdated():
            raise LinkClosed("another supervisor has taken over")
        self._after(LOOK_EVERY_S, self._look)

    def _turn(self) -> None:
        now = time.monotonic()
        due_s = self._timers.next_s()
        for key, _ in self._selector.select(None if due_s is None else max(0.0, due_s - now)):
            key.data()
        self._timers.run_due()

    # --- the supervisor's word -------------------------------------------------------------------

    def _hear(self) -> None:
        while (received := self._link.recv(0)) is not None:
            self._obey(received)

    def _obey(self, received: Received) -> None:
        message = received[0]
        if isinstance(message, Launch):
            self._launch(message)
        elif isinstance(message, Signalled):
            child = self._children.get((message.name, message.incarnation))
            if child is not None:
                child.signal(message.number)
        elif isinstance(message, EndProcess):
            self._end(message)
        elif isinstance(message, WhoAreYou):  # it has given up our processes
            self._end_all()
            self._after(LOOK_EVERY_S, self._look)
            self._link.send(self._offer)
        elif isinstance(message, Declined):
            raise UserError(f"the run has no use for this node: {message.reason}", message.fix)
        elif isinstance(message, (Stop, Await)):
            log.info("leaving: %s", message.reason if isinstance(message, Stop) else "the supervisor ends")
            self._is_over, self._may_follow = True, isinstance(message, Await)

    def _launch(self, launch: Launch) -> None:
        key = (launch.name, launch.incarnation)
        try:
            child = self._start(launch)
        except RollartError as error:
            log.error("%s", error)
            self._link.send(Died(*key, ExitCode.ENVIRONMENT, clip(error.what)))
            return
        self._cpus[key] = self._cores.take(launch.cpus)
        resources.settle(child.pid, self._cpus[key])
        self._children[key] = child
        if launch.role == "relay":
            self._stores[launch.arguments[launch.arguments.index("--node") + 1]] = launch.incarnation
        self._selector.register(child, selectors.EVENT_READ, partial(self._ended, key))
        log.info("started %s, pid %d", launch.name, child.pid)
        self._link.send(Launched(*key, child.pid))

    def _start(self, launch: Launch) -> LocalChild:
        proc = Proc(launch.name, launch.role, self._offer.hardware, self._offer.host)  # type: ignore[arg-type]
        order = Order(proc, launch.attempt, Path(launch.log), launch.incarnation)
        variables = launch.variables | resources.cache_variables(self._caches)
        variables |= resources.gpu_variables(self._offer.gpus, launch.gpus) | {STAYS_VARIABLE: "1"}
        return self._place.start(order, python(*launch.arguments), variables)

    def _end(self, message: EndProcess) -> None:
        """Answered by Died. `grace_s` to end by itself, then SIGTERM and `term_s`, then SIGKILL."""
        child = self._children.get((message.name, message.incarnation))
        if child is None:
            return
        if message.term_s:
            self._after(message.grace_s, partial(child.signal, signal.SIGTERM))
        self._after(message.grace_s + message.term_s, partial(self._kill, (message.name, message.incarnation)))

    def _kill(self, key: tuple[str, str]) -> None:
        child = self._children.get(key)
        if child is not None:
            child.kill_group()

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        if delay_s > 0:
            self._timers.after(delay_s, action)
        else:
            action()

    # --- endings ---------------------------------------------------------------------------------

    def _ended(self, key: tuple[str, str]) -> None:
        child = self._children.pop(key)
        self._selector.unregister(child)
        self._cores.give_back(self._cpus.pop(key))
        code = child.reap()
        reason = self._why(code)
        log.info("%s ended with %s%s", key[0], code, f": {reason}" if reason else "")
        self._link.send(Died(*key, code, clip(reason)))

    def _why(self, code: int) -> str:
        before, self._num_out_of_memory = self._num_out_of_memory, resources.num_killed_for_memory()
        return "out of memory" if code == -signal.SIGKILL and self._num_out_of_memory > before else ""

    def _end_all(self) -> None:
        """At once: the supervisor has given them up, or has asked them to end before."""
        for child in self._children.values():
            self._selector.unregister(child)
        self._place.end(self._children.values())
        for cpus in self._cpus.values():
            self._cores.give_back(cpus)
        self._children.clear()
        self._cpus.clear()
        self._timers.clear()
        for node, relay in self._stores.items():
            self._run.remove_store_of(node, relay)
        self._stores.clear()

    def _signalled(self) -> None:
        for number in self._signals.take():
            log.info("got %s: telling the supervisor", signal.Signals(number).name)
            self._link.send(Warned(self._offer.host))
            self._is_over = self._is_over or self._offer.is_guest
