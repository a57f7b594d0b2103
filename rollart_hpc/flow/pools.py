"""Engines by hardware class and by the version they have. Owns who can take another trajectory, and how full they are.

A pool keeps a bucket per installed version. Few versions are alive at any time, so the emptiest engine that is new
enough is found with one look at each bucket, however many engines there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from rollart_hpc.flow.ranking import Ranking
from rollart_hpc.flow.state import Trajectory, Worker

SLACK = 0.05  # an engine that is this much fuller than the mean takes nothing new
TINY = 1e-6  # what adding and subtracting weights may leave of nothing
MAX_LOOKS = 8  # engines tried for one trajectory before it waits for KV
KV_GRAIN = 64  # KV use is compared in parts of the capacity, so that the order does not change with every turn


class Share(NamedTuple):
    """What an engine adds to its bucket."""

    version: int
    num_level: int  # 1, or 0 if others need not be level with it
    num_trajectories: int
    weight: float
    capacity: int


@dataclass(slots=True)
class Bucket:
    """The engines of a pool that have one version."""

    open: Ranking = field(default_factory=Ranking)  # those with a free credit, the emptiest first
    num_engines: int = 0
    num_level: int = 0
    num_trajectories: int = 0
    weight: float = 0.0
    capacity: int = 0

    def add(self, share: Share, sign: int) -> None:
        self.num_engines += sign
        self.num_level += sign * share.num_level
        self.num_trajectories += sign * share.num_trajectories
        self.weight += sign * share.weight
        self.capacity += sign * share.capacity


class Pool:
    def __init__(self, name: str) -> None:
        self.name = name
        self.engines: dict[str, Worker] = {}
        self.buckets: dict[int, Bucket] = {}
        self._shares: dict[str, Share] = {}

    def update(self, engine: Worker, version: int | None, is_blocked: bool = False) -> None:
        """Something about this engine has changed. `version`: what it can generate with, None for nothing."""
        name = engine.name
        earlier = self._shares.get(name)
        share = None if version is None else _share(engine, version)
        if share != earlier:
            self._move(name, earlier, share)
        if share is None:
            return
        ranking = self.buckets[share.version].open
        if engine.load < engine.capacity and not is_blocked:
            ranking.put(name, _key(engine))
        else:
            ranking.drop(name)

    def _move(self, name: str, earlier: Share | None, share: Share | None) -> None:
        if share is not None:
            self.buckets.setdefault(share.version, Bucket()).add(share, +1)
            self._shares[name] = share
        else:
            del self._shares[name]
        if earlier is not None:
            bucket = self.buckets[earlier.version]
            bucket.add(earlier, -1)
            if share is None or share.version != earlier.version:
                bucket.open.drop(name)
            if not bucket.num_engines:
                del self.buckets[earlier.version]

    def leave(self, engine: Worker) -> None:
        self.update(engine, None)
        del self.engines[engine.name]


class Choice:
    """The engine for one trajectory among those of some pools that have at least version `oldest`."""

    def __init__(self, pools: Iterable[Pool], oldest: int) -> None:
        self.new_enough: list[tuple[Pool, Bucket]] = []
        self.num_level, self.num_trajectories, self.weight = 0, 0, 0.0  # of those that are new enough
        self.all_trajectories, self.all_weight, self.all_capacity = 0, 0.0, 0
        for pool in pools:
            for version, bucket in pool.buckets.items():
                self.all_trajectories += bucket.num_trajectories
                self.all_weight += bucket.weight
                self.all_capacity += bucket.capacity
                if version >= oldest:
                    self.new_enough.append((pool, bucket))
                    self.num_level += bucket.num_level
                    self.num_trajectories += bucket.num_trajectories
                    self.weight += bucket.weight

    def emptiest(self, fits: Callable[[Worker], bool]) -> Worker | None:
        best: tuple[tuple[float, ...], str] | None = None
        engine = None
        for pool, bucket in self.new_enough:
            top = _first_that_fits(pool, bucket.open, fits)
            if top is not None and (best is None or top < best):
                best, engine = top, pool.engines[top[1]]
        return engine

    def has_share_left(self, engine: Worker, num_waiting: int) -> bool:
        """While other engines still install, nobody takes more than its fair share of what runs and waits.

        Beyond its part of all credits it takes nothing that puts it ahead of the others: credits bind them, too.
        """
        if self.weight >= self.all_weight:
            return True
        part = engine.weight / self.all_weight
        share = ceil(part * (self.all_trajectories + num_waiting))
        return len(engine.trajectories) < min(share, part * max(self.all_capacity, self.all_trajectories))

    def is_level(self, engine: Worker) -> bool:
        """A full engine waits for emptier ones to have a credit: what it takes now stays with it for long.

        All of them with one more each is the measure. The emptiest engine is never above it, whatever their weights.
        """
        if self.weight < TINY:
            return True
        part = engine.weight / self.weight
        measure = part * max(self.num_trajectories + self.num_level, (1 + SLACK) * self.num_trajectories)
        return len(engine.trajectories) + 1 <= measure + TINY


def _first_that_fits(
    pool: Pool, ranking: Ranking, fits: Callable[[Worker], bool]
) -> tuple[tuple[float, ...], str] | None:
    passed: list[tuple[tuple[float, ...], str]] = []
    while (top := ranking.first()) is not None and len(passed) < MAX_LOOKS and not fits(pool.engines[top[1]]):
        passed.append(top)
        ranking.drop(top[1])
    for key, name in passed:
        ranking.put(name, key)
    return top if len(passed) < MAX_LOOKS else None


def _share(engine: Worker, version: int) -> Share:
    """An engine whose KV is full counts for nothing: the others must not wait until they are level with it."""
    num = len(engine.trajectories)
    if engine.kv_tokens and num and engine.held_tokens * (num + 1) > engine.kv_tokens * num:
        return Share(version, 0, 0, 0.0, 0)
    return Share(version, 1, num, engine.weight, engine.capacity)


def _key(engine: Worker) -> tuple[float, ...]:
    """How full it would be with one more; of two equally full ones, the one with more KV left comes first."""
    used = engine.held_tokens * KV_GRAIN // engine.kv_tokens if engine.kv_tokens else 0
    return (len(engine.trajectories) + 1) / engine.weight, used


def fits(engine: Worker, trajectory: Trajectory) -> bool:
    """Its KV holds one more. An empty engine takes anything: it says itself what can never fit."""
    tokens = engine.kv_tokens
    if not tokens or not engine.trajectories or trajectory.id in engine.trajectories:
        return True
    return engine.held_tokens + trajectory.footprint <= tokens


def fits_now(engine: Worker, trajectory: Trajectory) -> bool:
    """Its KV holds this turn beside those that run."""
    tokens = engine.kv_tokens
    return not tokens or not engine.load or engine.running_tokens + trajectory.turn_tokens <= tokens
