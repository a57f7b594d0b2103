"""Reward workers that come with the queue and go when it is empty. Owns how many are asked for and when.

    queue (waiting + being scored) -> Scaler: how many more -> ElasticWorkers: processes here, or jobs of a cluster

Nobody is sent away: a worker that has had nothing to do for `reward.elastic.idle_s` leaves by itself. Only those that
have not begun yet are cancelled. The decision is a function of what it is told.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rollart_hpc.config.schema import ElasticConfig, RewardConfig

FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 120.0


@dataclass
class Scaler:
    """Asks for more at once if nobody is there to score, otherwise when the queue has been too long for a while."""

    settings: ElasticConfig
    num_fixed: int  # workers that are always there
    _lacking_since_s: float | None = None
    _empty_since_s: float | None = None
    _num_failures: int = 0
    _not_before_s: float = 0.0

    def wanted(self, queue: int) -> int:
        """Elastic workers for a queue of this length."""
        if queue == 0:
            return 0
        enough = math.ceil(queue / self.settings.queue_per_worker) - self.num_fixed
        return min(self.settings.max_workers, max(enough, 0 if self.num_fixed else 1))

    def num_to_request(self, queue: int, num_requested: int, now: float) -> int:
        missing = self.wanted(queue) - num_requested
        if missing <= 0:
            self._lacking_since_s = None
            return 0
        if self._lacking_since_s is None:
            self._lacking_since_s = now
        is_urgent = num_requested + self.num_fixed == 0
        has_settled = now - self._lacking_since_s >= self.settings.settle_s
        if now < self._not_before_s or not (is_urgent or has_settled):
            return 0
        self._lacking_since_s = None
        return missing

    def should_cancel_pending(self, queue: int, now: float) -> bool:
        """The queue has been empty for so long that whoever has not begun yet need not come."""
        if queue:
            self._empty_since_s = None
            return False
        if self._empty_since_s is None:
            self._empty_since_s = now
        return now - self._empty_since_s >= self.settings.idle_s

    def failed(self, now: float) -> float:
        """A worker could not be had. Returns for how long none is asked for."""
        self._num_failures += 1
        pause_s = float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._num_failures - 1)))
        self._not_before_s = now + pause_s
        return pause_s

    def succeeded(self) -> None:
        self._num_failures = 0


class ElasticWorkers(Protocol):
    """Starts elastic workers and knows how many there are. None of its methods waits for anybody."""

    def request(self, count: int) -> None: ...

    @property
    def num_requested(self) -> int:
        """Asked for, waiting in a queue, or at work."""
        ...

    @property
    def num_pending(self) -> int:
        """Of those, how many wait in the queue of a cluster."""
        ...

    def failures(self) -> list[str]:
        """What went wrong since the last call."""
        ...

    def worker_left(self) -> None:
        """The controller has lost a worker: whoever counts them may look again."""
        ...

    def cancel_pending(self) -> None:
        """Those that have not begun need not come."""
        ...

    def end(self) -> None:
        """The run is over or begins again: nobody is needed any more."""
        ...


class Elastic:
    """Asks for as many workers as the scaler wants, once a second."""

    def __init__(self, config: RewardConfig, workers: ElasticWorkers, note: Callable[[str], None]) -> None:
        self._scaler = Scaler(config.elastic, config.workers)
        self._is_on = config.elastic.max_workers > 0
        self._workers, self._note = workers, note
        self._num_alive = 0
        self._failures: list[str] = []

    def failed(self, reason: str) -> None:
        """A worker ended that should not have."""
        self._failures.append(reason)

    def tick(self, status: dict[str, Any], now: float) -> bool:
        """Returns whether the run waits for workers that wait in the queue of a cluster themselves."""
        if not self._is_on or status.get("state") not in ("starting", "running"):
            return False
        told, self._failures = self._failures, []
        for failure in (*told, *self._workers.failures()):
            pause_s = self._scaler.failed(now)
            self._note(f"an elastic reward worker could not be had: {failure}; trying again in {pause_s:g} s")
        queue = int(status.get("to_score", 0))
        self._see_alive(status)
        count = self._scaler.num_to_request(queue, self._workers.num_requested, now)
        if count:
            self._note(f"{queue} transcripts to score: asking for {count} elastic reward worker{'s' * (count > 1)}")
            self._workers.request(count)
        elif self._workers.num_pending and self._scaler.should_cancel_pending(queue, now):
            self._note("no transcripts to score: cancelling the elastic reward workers that have not begun")
            self._workers.cancel_pending()
        return queue > 0 and self._num_alive == 0 and self._workers.num_pending > 0

    def _see_alive(self, status: dict[str, Any]) -> None:
        workers = status.get("workers", {}).get("reward", {})
        alive = int(workers.get("alive", 0))
        if alive > self._num_alive:
            self._scaler.succeeded()
        if alive < self._num_alive:
            self._workers.worker_left()
        if alive != self._num_alive:
            self._note(f"reward workers: {self._num_alive} -> {alive}")
        self._num_alive = alive

    def end(self) -> None:
        if self._is_on:
            self._workers.end()
