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
        self._waiting: dict[str, deque[Trajectory]] = {}

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
        wanted = SPLIT_POOLS.get(self.stage(trajectory), self.policy.tasks[trajectory.task].affinity)
        self._waiting.setdefault(wanted, deque()).append(trajectory)

    def assign(self) -> Iterable[tuple[Trajectory, Worker]]:
        """Pairs of a waiting turn and the engine that takes it; the caller must spend the credit before the next."""
        for wanted, queue in list(self._waiting.items()):
            held_back: list[Trajectory] = []
            while queue:
                trajectory = queue.popleft()
                if trajectory.state is not State.WAITING:
                    continue
                engine = self._choose(trajectory)
                if engine is None:
                    held_back.append(trajectory)
                    if not self._has_room(wanted):
                        break
                    continue
                self._count(trajectory, engine)
                yield trajectory, engine
            queue.extendleft(reversed(held_back))

    def _candidates(self, pool: str) -> list[Worker]:
        return [e for e in self.engines.values() if pool in (ANY, e.pool)]

    def _has_room(self, wanted: str) -> bool:
        pool = wanted if self._is_alive(wanted) else ANY
        return any(e.room > 0 for e in self._candidates(pool))

    def _choose(self, trajectory: Trajectory) -> Worker | None:
        pool = SPLIT_POOLS.get(self.stage(trajectory)) or self.pool_of(trajectory.task)
        fit = [e for e in self._candidates(pool) if e.room > 0 and self._may_serve(e, trajectory)]
        if not fit:
            return None
        own = self.engines.get(trajectory.engine)
        if own in fit:
            return own
        return min(fit, key=lambda e: (e.load / e.capacity, e.name))

    def _count(self, trajectory: Trajectory, engine: Worker) -> None:
        task = self.tally.tasks[trajectory.task]
        task.requests_by_pool[engine.pool] += 1
        stage = self.stage(trajectory)
        self.tally.split_requests += stage is Stage.DECODE
        self.tally.split_fallbacks += stage is Stage.WHOLE and self.policy.tasks[trajectory.task].split
        wanted = SPLIT_POOLS.get(stage, self.policy.tasks[trajectory.task].affinity)
        if wanted not in (ANY, engine.pool):
            self.tally.fallbacks += 1
            if self._is_alive(wanted):
                self.tally.stray_requests += 1
