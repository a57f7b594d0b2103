"""Engines by pool and installed version. Owns how full they are and which can take another trajectory.

A pool keeps one bucket per installed version. Only a few versions are in use at a time, so finding the emptiest engine
that is new enough takes one look at each bucket, however many engines there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import ceil
from typing import NamedTuple

from rollart_hpc.flow.ranking import Ranking
from rollart_hpc.flow.state import Trajectory, Worker

SLACK = 0.05  # an engine that is this much fuller than the mean takes nothing new
TINY = 1e-6  # rounding error of a sum of weights
NO_VERSION = -1  # bucket of the engines that have no weights of this attempt yet
MAX_LOOKS = 8  # engines tried for one trajectory before it waits for free KV
KV_GRAIN = 64  # KV use is compared in 64ths of the capacity, so that ranks do not change with every turn


class Share(NamedTuple):
    """The contribution of one engine to its bucket."""

    version: int
    num_level: int  # 1, or 0 if its KV is full and others need not wait for it
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
        """Refresh an engine that changed. `version`: the version it can generate with, or None."""
        name = engine.name
        earlier = self._shares.get(name)
        share = _share(engine, NO_VERSION if version is None else version)
        if share != earlier:
            self._move(name, earlier, share)
        ranking = self.buckets[share.version].open
        if engine.load < engine.capacity and version is not None and not is_blocked:
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
        self._move(engine.name, self._shares.get(engine.name), None)
        del self.engines[engine.name]


class Choice:
    """The candidates for one trajectory: engines of some pools with at least version `oldest`."""

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
        """While other engines still install, an engine takes at most its fair share of running and waiting work.

        Beyond its share of all credits it takes nothing that puts it ahead of the mean: credits limit the others too.
        """
        if self.weight >= self.all_weight:
            return True
        part = engine.weight / self.all_weight
        share = ceil(part * (self.all_trajectories + num_waiting))
        return len(engine.trajectories) < min(share, part * max(self.all_capacity, self.all_trajectories))

    def is_level(self, engine: Worker) -> bool:
        """False if the engine should wait until emptier ones have a credit. Trajectories stay where they start.

        The limit is the mean if every engine held one more. The emptiest engine is always within it.
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
    """An engine with a full KV cache, or on trial, does not count: the others must not wait for it to catch up."""
    num = len(engine.trajectories)
    if engine.full_capacity:
        return Share(version, 0, 0, 0.0, 0)
    if engine.kv_tokens and num and engine.held_tokens * (num + 1) > engine.kv_tokens * num:
        return Share(version, 0, 0, 0.0, 0)
    return Share(version, 1, num, engine.weight, engine.capacity)


def _key(engine: Worker) -> tuple[float, ...]:
    """How full the engine would be with one more trajectory. Free KV breaks ties."""
    used = engine.held_tokens * KV_GRAIN // engine.kv_tokens if engine.kv_tokens else 0
    return (len(engine.trajectories) + 1) / engine.weight, used


def fits(engine: Worker, trajectory: Trajectory) -> bool:
    """True if the KV cache can hold this trajectory. An empty engine takes any: it reports what can never fit."""
    tokens = engine.kv_tokens
    if not tokens or not engine.trajectories or trajectory.id in engine.trajectories:
        return True
    return engine.held_tokens + trajectory.footprint <= tokens


def fits_now(engine: Worker, trajectory: Trajectory) -> bool:
    """True if the KV cache can hold this turn beside the running ones."""
    tokens = engine.kv_tokens
    return not tokens or not engine.load or engine.running_tokens + trajectory.turn_tokens <= tokens
