"""The supervisor's side of the agents. Owns their hub and the thread that serves it; decides nothing.

    supervisor's thread                       server's thread                   agents
    start(), child.signal() -> outbox ------> ROUTER --------------------------> Launch, Signalled, EndProcess
    take() <- Arrived, Departed, Warning <--- ROUTER <-------------------------- Offer, Warned, silence
    child.fileno() <------------------------- child.ended() <------------------- Died, or the agent is lost

Every supervisor of a run makes new keys, so agents of an earlier one can't complete a handshake.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import deque
from functools import partial
from typing import NamedTuple

from rollart_hpc.launch.agents.address import write_address
from rollart_hpc.launch.agents.child import RemoteChild
from rollart_hpc.launch.process import Order
from rollart_hpc.rundir import RunDir
from rollart_hpc.types import Frame
from rollart_hpc.wire.hub import listen
from rollart_hpc.wire.keys import AGENTS, load_server, make_keys
from rollart_hpc.wire.members import Lost, Members
from rollart_hpc.wire.messages import AnyMessage, Await, Declined, Died, Launch, Launched, Message, Offer, Stop, Warned
from rollart_hpc.wire.wakeup import Wakeup

log = logging.getLogger(__name__)

TICK_S = 0.5


class Arrived(NamedTuple):
    agent: str
    offer: Offer


class Departed(NamedTuple):
    agent: str
    reason: str


class Warning(NamedTuple):
    """The agent's machine will soon end it."""

    agent: str


News = Arrived | Departed | Warning


class AgentServer:
    def __init__(self, run: RunDir, bind_host: str, ports: str = "", *, heartbeat_s: float, silence_s: float) -> None:
        self.epoch = run.last_agent_epoch() + 1
        make_keys(run.agent_keys(self.epoch), AGENTS)
        self._hub = listen(bind_host, ports, load_server(run.agent_keys(self.epoch)))
        self._members = Members(self._hub, attempt=self.epoch, heartbeat_s=heartbeat_s, silence_s=silence_s)
        self.address = f"tcp://{bind_host}:{self._hub.port}"
        self._lock = threading.Lock()
        self._news: deque[News] = deque()
        self._has_news, self._has_mail = Wakeup(), Wakeup()
        self._outbox: deque[tuple[str, Message]] = deque()
        self._children: dict[str, dict[tuple[str, str], RemoteChild]] = {}  # by agent, name and incarnation
        self._offers: dict[str, Offer] = {}
        self._is_closing = False
        self._hub.watch(self._has_mail.fd)
        write_address(run, self.address, self.epoch)
        self._thread = threading.Thread(target=self._serve, name="agents", daemon=True)
        self._thread.start()

    # --- supervisor's thread ---------------------------------------------------------------------

    def fileno(self) -> int:
        """For selectors: readable while there is news to take."""
        return self._has_news.fd

    def take(self) -> list[News]:
        with self._lock:
            self._has_news.clear()
            taken = list(self._news)
            self._news.clear()
        return taken

    def has(self, agent: str) -> bool:
        return agent in self._offers

    def start(self, agent: str, order: Order, arguments: list[str], variables: dict[str, str]) -> RemoteChild:
        """If the agent is lost meanwhile, the child ends as an orphan."""
        proc, key = order.proc, (order.proc.name, order.incarnation)
        with self._lock:
            offer = self._offers.get(agent)
            host = offer.host if offer else ""
            child = RemoteChild(order, host, partial(self._send, agent), partial(self._forget, agent, key))
            if offer is None:
                child.ended(-signal.SIGKILL, is_orphan=True)
                return child
            self._children.setdefault(agent, {})[key] = child
        launch = Launch(
            proc.name, proc.role, order.incarnation, order.attempt, arguments, variables, str(order.log),
            list(proc.gpus), proc.needs.cpus,
        )  # fmt: skip
        self._send(agent, launch)
        return child

    def _send(self, agent: str, message: Message) -> None:
        self._outbox.append((agent, message))
        self._has_mail.set()

    def _forget(self, agent: str, key: tuple[str, str], _: RemoteChild) -> None:
        with self._lock:
            self._children.get(agent, {}).pop(key, None)

    def give_up(self, agent: str, reason: str) -> None:
        """Treat the agent as lost, although it may be alive: it is told to leave."""
        self._send(agent, Stop(reason))
        self._lost(agent, reason)

    def dismiss(self, agent: str, reason: str) -> None:
        """It leaves for good, also if it could wait for another supervisor."""
        self._send(agent, Stop(reason))

    def decline(self, agent: str, reason: str, fix: str) -> None:
        """There is no work for the node of this guest."""
        self._send(agent, Declined(reason, fix))
        with self._lock:
            self._offers.pop(agent, None)

    def close(self) -> None:
        """Agents end their processes and leave, or wait for the next supervisor. May be called twice."""
        if not self._is_closing:
            self._is_closing = True
            self._has_mail.set()
            self._thread.join()

    # --- server's thread -------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._is_closing:
                for incoming in self._hub.poll(TICK_S):
                    self._handle(*incoming)
                for event in self._members.tick(time.monotonic()):
                    if isinstance(event, Lost):
                        self._lost(event.hello.name, event.reason)
                self._flush()
            self._flush()
            for agent in self._members.alive:
                self._hub.send(agent, Await())
        except Exception:
            log.exception("the server of the agents failed")
            for agent in list(self._offers):
                self._lost(agent, "the supervisor can't reach its agents anymore")
        finally:
            self._hub.close()

    def _flush(self) -> None:
        self._has_mail.clear()
        while self._outbox:
            agent, message = self._outbox.popleft()
            self._hub.send(agent, message)  # an agent that can't be reached is found by its silence

    def _handle(self, agent: str, message: AnyMessage, frames: list[Frame]) -> None:
        for event in self._members.handle(agent, message):
            if isinstance(event, Lost):
                self._lost(agent, event.reason)
        if isinstance(message, Offer):
            with self._lock:
                self._offers[agent] = message
            self._report(Arrived(agent, message))
        elif isinstance(message, Warned):
            self._report(Warning(agent))
        elif isinstance(message, (Launched, Died)):
            self._tell_child(agent, message)

    def _tell_child(self, agent: str, message: Launched | Died) -> None:
        with self._lock:
            child = self._children.get(agent, {}).get((message.name, message.incarnation))
            if child is None:
                return
            if isinstance(message, Launched):
                child.launched(message.pid)
                self._has_news.set()  # supervisor.json gets its pid
            else:
                child.ended(message.code, message.reason)

    def _lost(self, agent: str, reason: str) -> None:
        with self._lock:
            was_there = self._offers.pop(agent, None) is not None
            for child in self._children.pop(agent, {}).values():
                child.ended(-signal.SIGKILL, is_orphan=True)
        if was_there:
            self._report(Departed(agent, reason))

    def _report(self, news: News) -> None:
        with self._lock:
            self._news.append(news)
            self._has_news.set()
