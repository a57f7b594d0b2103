"""Which engine serves a turn. Owns the waiting turns of each pool; decides by affinity, version and room.

A task's pool is its hardware class as long as an engine of that class lives; otherwise any other
pool, counted as fallback, until the class is back. Inside a pool a trajectory stays with the
engine that holds its KV. A turn of a split task is served twice, prefilled in one pool and decoded in
another, while both have a living engine; otherwise one engine serves it as a whole, counted too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum, auto

from rollart_hpc.flow.policy import Policy
from rollart_hpc.flow.state import State, Tally, Trajectory, Worker
from rollart_hpc.hardware import BANDWIDTH, COMPUTE

ANY = "any"

# What decides which engines may serve a turn: task, training, begun, version to begin with, own engine, KV is ready.
Kind = tuple[str, bool, bool, int, str, bool]
Waiting = deque[tuple[int, Trajectory]]  # in the order of arrival, with its number


def _kind_of(trajectory: Trajectory) -> Kind:
    """Turns of one kind can be served by the same engines, so that one of them stands for all."""
    group, has_begun = trajectory.group, trajectory.first_version >= 0
    begins_at = -1 if group is None or has_begun else group.admitted_version
    return trajectory.task, group is not None, has_begun, begins_at, trajectory.engine, bool(trajectory.kv)


class Stage(Enum):
    """What an engine is asked for."""

    WHOLE = auto()
    PREFILL = auto()
    DECODE = auto()


SPLIT_POOLS = {Stage.PREFILL: COMPUTE, Stage.DECODE: BANDWIDTH}


class Router:
    def __init__(self, policy: Policy, tally: Tally, may_serve: Callable[[Worker, Trajectory], bool]) -> None:
        self.policy = policy
        self.tally = tally
        self.engines: dict[str, Worker] = {}
        self._awaited = set(policy.pools)
        self._may_serve = may_serve
        self._waiting: dict[str, dict[Kind, Waiting]] = {}
        self._num_enqueued = 0

    def pool_of(self, task: str) -> str:
        """The pool that serves this task now."""
        wanted = self.policy.tasks[task].affinity
        return wanted if wanted == ANY or self._is_alive(wanted) else ANY

    def stage(self, trajectory: Trajectory) -> Stage:
        """What the turn that waits needs next, as things stand."""
        if not self.policy.tasks[trajectory.task].split or not all(map(self._is_alive, SPLIT_POOLS.values())):
            return Stage.WHOLE
        return Stage.DECODE if trajectory.kv else Stage.PREFILL

    def join(self, engine: Worker) -> None:
        self.engines[engine.name] = engine
        self._awaited.discard(engine.pool)

    def _is_alive(self, pool: str) -> bool:
        """A pool whose first engine is yet to come counts as alive: its tasks wait for it."""
        return pool in self._awaited or any(e.pool == pool for e in self.engines.values())

    def enqueue(self, trajectory: Trajectory) -> None:
        self._num_enqueued += 1
        self._put(self._num_enqueued, trajectory)

    def _put(self, number: int, trajectory: Trajectory) -> None:
        wanted = SPLIT_POOLS.get(self.stage(trajectory), self.policy.tasks[trajectory.task].affinity)
        kinds = self._waiting.setdefault(wanted, {})
        kinds.setdefault(_kind_of(trajectory), deque()).append((number, trajectory))

    def assign(self) -> Iterable[tuple[Trajectory, Worker]]:
        """Pairs of a waiting turn and the engine that takes it; the caller must spend the credit before the next."""
        for wanted, kinds in list(self._waiting.items()):
            stuck: set[Kind] = set()
            while kinds and self._has_room(wanted) and (kind := self._next_kind(kinds, stuck)) is not None:
                trajectory = kinds[kind][0][1]
                engine = self._choose(trajectory)
                if engine is None:
                    stuck.add(kind)  # the first one stands for all of its kind
                    continue
                self._take(kinds, kind)
                self._count(trajectory, engine)
                yield trajectory, engine

    def _next_kind(self, kinds: dict[Kind, Waiting], stuck: set[Kind]) -> Kind | None:
        """Whose first turn has waited longest."""
        self._tidy(kinds)
        if len(kinds) == 1:
            only = next(iter(kinds))
            return None if only in stuck else only
        return min((kind for kind in kinds if kind not in stuck), key=lambda kind: kinds[kind][0][0], default=None)

    def _tidy(self, kinds: dict[Kind, Waiting]) -> None:
        """A turn that is no longer wanted goes; one that has become of another kind (its engine was lost) moves."""
        for kind in list(kinds):
            while kind in kinds:
                number, trajectory = kinds[kind][0]
                if trajectory.state is State.WAITING and _kind_of(trajectory) == kind:
                    break
                self._take(kinds, kind)
                if trajectory.state is State.WAITING:
                    self._put(number, trajectory)

    def _take(self, kinds: dict[Kind, Waiting], kind: Kind) -> None:
        kinds[kind].popleft()
        if not kinds[kind]:
            del kinds[kind]

    def _candidates(self, pool: str) -> list[Worker]:
        return [e for e in self.engines.values() if pool in (ANY, e.pool)]

    def _has_room(self, wanted: str) -> bool:
        pool = wanted if self._is_alive(wanted) else ANY
        return any(e.room > 0 for e in self._candidates(pool))

    def _choose(self, trajectory: Trajectory) -> Worker | None:
        pool = SPLIT_POOLS.get(self.stage(trajectory)) or self.pool_of(trajectory.task)
        fit = [e for e in self._candidates(pool) if e.room > 0 and self._may_serve(e, trajectory)]
        own = self.engines.get(trajectory.engine)
        if own in fit:
            return own
        if not fit:
            return own if own is not None and self._must_end_on(own, trajectory) else None
        return min(fit, key=lambda e: (e.load / e.capacity, e.name))

    def _must_end_on(self, own: Worker, trajectory: Trajectory) -> bool:
        """It began there when its pool was gone. An engine that installs only when idle would wait for its end, and
        the pool, if that needs the new version first, for the engine."""
        is_whole = self.stage(trajectory) is Stage.WHOLE
        return self.policy.install_idle and is_whole and own.room > 0 and self._may_serve(own, trajectory)

    def _count(self, trajectory: Trajectory, engine: Worker) -> None:
        task = self.tally.tasks[trajectory.task]
        task.requests_by_pool[engine.pool] += 1
        stage = self.stage(trajectory)
        self.tally.split_requests += stage is Stage.DECODE
        self.tally.split_fallbacks += stage is Stage.WHOLE and self.policy.tasks[trajectory.task].split
        wanted = SPLIT_POOLS.get(stage, self.policy.tasks[trajectory.task].affinity)
        if wanted not in (ANY, engine.pool):
            self.tally.fallbacks += 1
            if self._is_alive(wanted) and engine.name != trajectory.engine:
                self.tally.stray_requests += 1
