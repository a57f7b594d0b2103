"""What chaos does to a process. Owns the kinds of acts, what each role can suffer, and the lines of chaos.jsonl."""

from __future__ import annotations

from enum import StrEnum
from typing import Union

import msgspec


class Kind(StrEnum):
    meaning: str

    def __new__(cls, word: str, meaning: str) -> Kind:
        self = str.__new__(cls, word)
        self._value_ = word
        self.meaning = meaning
        return self

    KILL = "kill", "SIGKILL"
    STOP = "stop", "SIGSTOP for some seconds, or until the run replaces the process"
    SLOW = "slow", "stopped for nine tenths of the time, in short pieces"
    CUT = "cut", "every TCP connection of the process is shut down, again and again"
    CORRUPT = "corrupt", "kills an engine and damages the weights of its node; or a trainer, and its newest checkpoint"


AGENT = "agent"  # of a node, on a cluster
RESTORING = ("controller", "trainer")  # their loss takes the run back to its newest checkpoint
ANY = (Kind.KILL, Kind.STOP, Kind.SLOW, Kind.CUT)
KINDS_OF: dict[str, tuple[Kind, ...]] = {
    "controller": ANY,
    "trainer": (*ANY, Kind.CORRUPT),
    "engine": (*ANY, Kind.CORRUPT),
    "env": ANY,
    "reward": ANY,
    "relay": ANY,
    AGENT: (Kind.KILL, Kind.STOP, Kind.CUT),
}
ROLES = tuple(KINDS_OF)


class Victim(msgspec.Struct, frozen=True):
    """A process that can be hit."""

    name: str
    role: str
    node: str  # of the plan
    host: str  # empty: that of the supervisor
    pid: int  # 0: its hand looks for it
    incarnation: str


class Act(msgspec.Struct, frozen=True):
    kind: Kind
    victim: Victim
    seconds: float = 0.0  # how long it lasts; 0 = at once
    point: float = 0.0  # of what is damaged: where, between 0 and 1

    @property
    def is_lethal(self) -> bool:
        return self.kind in (Kind.KILL, Kind.CORRUPT)

    def __str__(self) -> str:
        lasting = f" for {self.seconds:.1f} s" if self.seconds else ""
        place = f" on {self.victim.host}" if self.victim.host else ""
        return f"{self.kind} {self.victim.name}{place}{lasting}"


class Line(msgspec.Struct, frozen=True, tag_field="what", omit_defaults=True):
    time_s: float


class Began(Line, frozen=True, tag="began"):
    seed: int
    for_s: float
    roles: list[str]
    kinds: list[str]


class Did(Line, frozen=True, tag="act"):
    number: int
    kind: str
    role: str
    name: str
    host: str
    pid: int
    seconds: float
    detail: str  # what the hand says it has done


class Refused(Line, frozen=True, tag="refused"):
    """The act could not be done; nothing was hit."""

    kind: str
    role: str
    name: str
    reason: str


class Recovered(Line, frozen=True, tag="recovered"):
    number: int
    after_s: float
    step: int


class Ended(Line, frozen=True, tag="ended"):
    is_ok: bool
    problems: list[str]


Record = Union[Began, Did, Refused, Recovered, Ended]
