"""What the core remembers. Owns trajectories, groups and workers as plain records, and the tally.

A trajectory walks through `State`; every way out that is not SCORED is counted in `Tally.dropped`.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field, fields
from enum import IntEnum, auto
from typing import Any

from rollart_hpc.errors import DETAIL_CHARS
from rollart_hpc.flow.pace import Pace
from rollart_hpc.types import Purpose, Role, WeightsId
from rollart_hpc.vocabulary import DropReason


class State(IntEnum):
    QUEUED = auto()  # waits for an env worker
    STEPPING = auto()  # with its environment: reset or turn
    WAITING = auto()  # wants a turn, waits for an engine
    GENERATING = auto()  # on an engine
    ANSWERED = auto()  # generated, answer held back (lockstep only)
    ENDED = auto()  # waits for a reward worker
    SCORING = auto()  # with a reward worker
    SCORED = auto()
    GONE = auto()  # cancelled or dropped


PLAYING = (State.STEPPING, State.WAITING, State.GENERATING, State.ANSWERED)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a trajectory failed: the counted reason, and the error message of the worker."""

    reason: DropReason
    detail: str = ""
    worker: str = ""

    def __str__(self) -> str:
        detail = " ".join(self.detail.split())[:DETAIL_CHARS]
        return self.reason + (f": {detail}" if detail else "") + (f" (see {self.worker}.log)" if self.worker else "")


@dataclass(slots=True, eq=False)
class Trajectory:
    id: str
    task: str
    purpose: Purpose
    seed: int
    sample_seed: int
    group: Group | None = None
    issue: int = 0
    state: State = State.QUEUED
    since_s: float = 0.0  # when it entered this state
    env: str = ""
    engine: str = ""  # holds its KV (decode side of split turns)
    prefiller: str = ""  # holds its KV on the prefill side of split turns
    server: str = ""  # engine that is running its request
    request: int = -1
    kv: str = ""  # split turns: handle of the prefilled KV
    turn: int = 0
    prompt_tokens: int = 0  # of the current turn
    turn_tokens: int = 0  # prompt and maximum answer of the current turn
    pools: tuple[str, ...] | None = None  # that serve it, () = all; None: it has not asked for a turn
    footprint: int = 0  # KV tokens reserved for it on an engine
    place: int = 0  # ticket in the router's queues; 0 = not waiting
    planned_version: int = -1  # installed version of the engine that samples its first tokens
    first_version: int = -1  # start_version: that of its oldest sampled token, usually the first
    last_version: int = -1
    reward: float = 0.0
    success: bool = False
    reward_worker: str = ""
    failures: int = 0
    score_failures: int = 0
    overdue: int = 0  # turns of it that missed their deadline, each of which doubles the next
    shuns: str = ""  # engine that missed the last one

    @property
    def is_training(self) -> bool:
        return self.purpose == "train"


@dataclass(slots=True, eq=False)
class Group:
    id: int
    task: str
    index: int  # how many groups of this task came before
    admitted_version: int = 0  # version of the trainer at admission
    members: list[Trajectory] = field(default_factory=list)
    failures: int = 0
    complete: bool = False
    completed_as: int = 0  # order of completion
    version: int | None = None  # the oldest start version; None while nothing was sampled
    indexed_at: int | None = None  # key in `Ages`: `version`, or the planned version if that is older

    @property
    def newest_version(self) -> int:
        return max((m.last_version for m in self.members), default=-1)


@dataclass(slots=True, eq=False)
class Worker:
    name: str
    role: Role
    node: str
    pool: str
    capacity: int
    num_ranks: int = 1
    kv_tokens: int = 0  # engines: how many tokens their KV cache holds; 0 = unknown
    speed: float = 1.0  # engines: relative to others of the same capacity
    load: int = 0  # credits spent
    trajectories: dict[str, Trajectory] = field(default_factory=dict)  # that it plays, holds the KV of, or scores
    held_tokens: int = 0  # engines: footprints of their trajectories
    running_tokens: int = 0  # engines: of their requests, with what these may add
    waiting: deque[tuple[int, Trajectory]] = field(default_factory=deque)  # engines: turns of their trajectories
    installed: WeightsId | None = None  # engines: acknowledged
    installing: WeightsId | None = None
    held: WeightsId | None = None  # relays: newest held
    moved_s: float = 0.0  # its last answer or other progress
    asked_s: float | None = None  # engines, relays: since when they owe an install or a transfer; None = they do not
    asked_for: WeightsId | None = None  # the newest that it owes
    has_answered: bool = False  # since it joined
    full_capacity: int = 0  # on trial: its capacity once it has proved itself; 0 = not on trial
    failures: int = 0  # env and reward workers: plays or scores in a row that failed, of any task
    pace: Pace = field(default_factory=Pace)  # shared by the workers of a role and pool

    @property
    def room(self) -> int:
        return self.capacity - self.load

    @property
    def weight(self) -> float:
        """Its fair share of a pool's trajectories, relative to other engines."""
        return (self.full_capacity or self.capacity) * self.speed


@dataclass(slots=True)
class TaskTally:
    trajectories: int = 0
    groups: int = 0
    successes: int = 0
    reward_sum: float = 0.0
    turns: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    requests_by_pool: Counter[str] = field(default_factory=Counter)
    quarantined: bool = False
    quarantine_reason: str = ""
    last_error: str = ""  # the newest failure of a play

    def snapshot(self) -> dict[str, Any]:
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return plain | {"requests_by_pool": dict(self.requests_by_pool)}


@dataclass(slots=True)
class Tally:
    """Counts of everything that happened to the work. Does not count workers."""

    dropped: Counter[DropReason] = field(default_factory=Counter)
    tasks: dict[str, TaskTally] = field(default_factory=dict)
    staleness: Counter[int] = field(default_factory=Counter)  # of trained trajectories
    fallbacks: int = 0
    stray_requests: int = 0  # outside the task's own pool while that was alive: stays 0
    split_requests: int = 0  # turns prefilled on one pool and decoded on the other
    split_fallbacks: int = 0  # turns of split tasks that one engine had to serve alone
    transfers: int = 0
    transfer_failures: int = 0
    transfer_fallbacks: int = 0  # went over another collective than the one asked for
    installs: int = 0
    install_s: float = 0.0
    exposed_s: float = 0.0
    install_bytes: int = 0
    wait_s: float = 0.0
    train_s: float = 0.0
    updates_skipped: int = 0  # gradients were not finite
    progress: int = 0  # grows with every event that moves the run

    def snapshot(self) -> dict[str, Any]:
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "tasks"}
        plain = {name: dict(value) if isinstance(value, Counter) else value for name, value in kept.items()}
        return plain | {"tasks": {name: task.snapshot() for name, task in self.tasks.items()}}

    def restore(self, saved: dict[str, Any]) -> None:
        """Take over a snapshot (as JSON gives it back); tasks that the run no longer has are left out."""
        for name, value in saved.items():
            current = getattr(self, name)
            if name == "tasks":
                for task in set(value) & set(self.tasks):
                    counts = Counter(value[task]["requests_by_pool"])
                    self.tasks[task] = TaskTally(**{**value[task], "requests_by_pool": counts})
            elif name == "staleness":
                current.update({int(key): count for key, count in value.items()})
            elif name == "dropped":
                for reason, count in value.items():
                    current[DropReason.of(reason)] += count
            else:
                setattr(self, name, value)
