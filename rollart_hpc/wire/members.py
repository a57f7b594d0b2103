"""The processes of the run. Owns registration, heartbeats and silence; owns no socket and no clock.

Hello       right package, attempt, role          -> Joined  (Welcome)
            a live name, another process          -> Lost(old), Joined(new)
            a live name, the same process again   -> Lost, Joined: its connection broke, messages may be lost
            anything wrong                        -> no event (Refused, the sender exits)
Heartbeat   -> acknowledged
Bye, Exited -> Lost                              (as LEFT if the process chose to leave)
silence     -> Lost at the next tick, as SILENT
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, get_args

import rollart_hpc
from rollart_hpc.hardware import MAX_SPEED, MIN_SPEED
from rollart_hpc.types import Role
from rollart_hpc.vocabulary import ProcessState
from rollart_hpc.wire.messages import Bye, Exited, Heartbeat, HeartbeatAck, Hello, Message, Welcome

ROLES = frozenset(get_args(Role)) - {"controller"}
NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
INCARNATION = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# Workers tolerate a silent controller for this many times as long as it tolerates them. A controller that is blocked
# for a moment (a slow disk) must find its workers again, and the supervisor notices a dead one much earlier.
PATIENCE = 3


_ABOUT_MEMBERS = frozenset({Heartbeat, Bye, Exited})


class Router(Protocol):
    """What `Members` needs from the hub."""

    def send(self, name: str, message: Message) -> bool: ...
    def admit(self, name: str, incarnation: str, role: str) -> None: ...
    def refuse(self, name: str, incarnation: str, reason: str) -> None: ...
    def forget(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Joined:
    hello: Hello


@dataclass(frozen=True, slots=True)
class Lost:
    hello: Hello
    reason: str
    state: ProcessState = ProcessState.LOST  # or LEFT, SILENT


class Members:
    def __init__(
        self,
        router: Router,
        *,
        attempt: int,
        heartbeat_s: float = 1.0,
        silence_s: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
        judge: Callable[[Hello], str] = lambda _: "",
    ) -> None:
        """`judge` says what else is wrong with a Hello; "" = nothing."""
        self._router = router
        self._judge = judge
        self.fence = attempt  # processes of older attempts are refused; raise it to shut out everything admitted so far
        self._heartbeat_s = heartbeat_s
        self._silence_s = silence_s
        self._clock = clock
        self._hellos: dict[str, Hello] = {}
        self._heard_s: dict[str, float] = {}
        self._ticked_s = clock()

    @property
    def alive(self) -> dict[str, Hello]:
        return dict(self._hellos)

    def handle(self, name: str, message: Message) -> list[Joined | Lost]:
        """Pass every message through here: each one is a sign of life."""
        if isinstance(message, Hello):
            return self._hello(name, message)
        if name not in self._hellos:
            return []
        self._heard_s[name] = self._clock()
        if type(message) not in _ABOUT_MEMBERS:
            return []
        if isinstance(message, Heartbeat):
            self._router.send(name, HeartbeatAck(message.sent_s, self._clock()))
        elif isinstance(message, Bye):
            state = ProcessState.LEFT if message.is_leaving else ProcessState.LOST
            return self._lose(name, f"said bye: {message.reason}", state)
        elif isinstance(message, Exited):
            gone = self._hellos.get(message.name)
            if gone is not None and gone.incarnation == message.incarnation:
                return self._lose(message.name, f"exited with code {message.code}")
        return []

    def tick(self, now: float) -> list[Joined | Lost]:
        """Call after the hub is drained, at least every `silence_s / 2`."""
        if now - self._ticked_s > self._silence_s / 2:
            # This process was blocked, not the others: their messages may still be unread.
            self._heard_s = dict.fromkeys(self._heard_s, now)
        self._ticked_s = now
        silent = [name for name, heard_s in self._heard_s.items() if now - heard_s > self._silence_s]
        reason = f"silent for {self._silence_s:g} s"
        return [event for name in silent for event in self._lose(name, reason, ProcessState.SILENT)]

    def lose(self, name: str, reason: str) -> list[Joined | Lost]:
        """Declare a process lost, e.g. after a send to it failed."""
        return self._lose(name, reason) if name in self._hellos else []

    def _hello(self, name: str, hello: Hello) -> list[Joined | Lost]:
        problem = self._problem(hello)
        if problem:
            self._router.refuse(name, hello.incarnation, problem)
            return []
        events: list[Joined | Lost] = []
        earlier = self._hellos.get(name)
        if earlier is not None:
            again = earlier.incarnation == hello.incarnation
            events.append(Lost(earlier, "its connection broke" if again else "replaced by a newer process"))
        self._router.admit(name, hello.incarnation, hello.role)
        self._hellos[name] = hello
        self._heard_s[name] = self._clock()
        self._router.send(name, Welcome(self._heartbeat_s, PATIENCE * self._silence_s, self._clock()))
        return [*events, Joined(hello)]

    def _problem(self, hello: Hello) -> str:
        if not NAME.fullmatch(hello.name) or not INCARNATION.fullmatch(hello.incarnation):
            return f"{hello.name!r}/{hello.incarnation!r}: not a valid name"
        if hello.role not in ROLES:
            return f"unknown role {hello.role!r}"
        if hello.package != rollart_hpc.__version__:
            return f"package version {hello.package}, but the controller has {rollart_hpc.__version__}"
        if hello.attempt < self.fence:  # a restored trainer joins with a newer one
            return f"attempt {hello.attempt} is over, the run is at attempt {self.fence}"
        if hello.capacity < 0:
            return f"capacity {hello.capacity}, must not be negative"
        if hello.num_ranks < 1:
            return f"num_ranks {hello.num_ranks}, must be at least 1"
        if hello.kv_tokens < 0:
            return f"kv_tokens {hello.kv_tokens}, must not be negative"
        if not MIN_SPEED <= hello.speed <= MAX_SPEED:
            return f"speed {hello.speed}, must be {MIN_SPEED} to {MAX_SPEED}"
        return self._judge(hello)

    def _lose(self, name: str, reason: str, state: ProcessState = ProcessState.LOST) -> list[Joined | Lost]:
        del self._heard_s[name]
        self._router.forget(name)
        return [Lost(self._hellos.pop(name), reason, state)]
