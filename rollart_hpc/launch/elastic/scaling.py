"""Elastic reward workers: requested while the scoring queue is long. Owns how many to request, and when.

    queue (waiting + being scored) -> Scaler: how many more -> ElasticWorkers: local processes, or jobs on a cluster

No running worker is stopped: one that has been idle for `reward.elastic.idle_s` leaves by itself. Only workers that
have not started are cancelled. The decision is a pure function of its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rollart_hpc.config.schema import ElasticConfig, RewardConfig
from rollart_hpc.vocabulary import RunState
from rollart_hpc.wire.messages import Progress

FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 120.0


@dataclass
class Scaler:
    """Requests workers at once if there are none, otherwise when the queue has been too long for some time."""

    settings: ElasticConfig
    num_fixed: int  # workers that are not elastic
    _lacking_since_s: float | None = None
    _empty_since_s: float | None = None
    _num_failures: int = 0
    _not_before_s: float = 0.0

    def wanted(self, queue: int) -> int:
        """How many elastic workers a queue of this length needs."""
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
        """The queue has been empty long enough that workers which have not started are not needed."""
        if queue:
            self._empty_since_s = None
            return False
        if self._empty_since_s is None:
            self._empty_since_s = now
        return now - self._empty_since_s >= self.settings.idle_s

    def failed(self, now: float) -> float:
        """A worker failed to start. Returns the seconds to wait before the next request."""
        self._num_failures += 1
        pause_s = float(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._num_failures - 1)))
        self._not_before_s = now + pause_s
        return pause_s

    def succeeded(self) -> None:
        self._num_failures = 0


class ElasticWorkers(Protocol):
    """Starts elastic workers and counts them. No method blocks."""

    def request(self, count: int) -> None: ...

    @property
    def num_requested(self) -> int:
        """Workers that are requested, pending in a queue or working."""
        ...

    @property
    def num_pending(self) -> int:
        """How many of those are pending in the queue of a cluster."""
        ...

    def failures(self) -> list[str]:
        """Failures since the last call."""
        ...

    def worker_left(self) -> None:
        """The controller lost a worker: the count may be out of date."""
        ...

    def cancel_pending(self) -> None:
        """Cancel workers that have not started."""
        ...

    def end(self) -> None:
        """End all workers: the run is over or restarts."""
        ...


class Elastic:
    """Requests as many workers as the scaler wants, once a second."""

    def __init__(self, config: RewardConfig, workers: ElasticWorkers, note: Callable[[str], None]) -> None:
        self._scaler = Scaler(config.elastic, config.workers)
        self._is_on = config.elastic.max_workers > 0
        self._workers, self._note = workers, note
        self._num_alive = 0
        self._failures: list[str] = []

    def failed(self, reason: str) -> None:
        """A worker ended unexpectedly."""
        self._failures.append(reason)

    def tick(self, progress: Progress, now: float) -> bool:
        """Returns whether the run is waiting for workers that are still pending in the queue of a cluster."""
        if not self._is_on or progress.state not in (RunState.STARTING, RunState.RUNNING):
            return False
        told, self._failures = self._failures, []
        for failure in (*told, *self._workers.failures()):
            pause_s = self._scaler.failed(now)
            self._note(f"an elastic reward worker failed: {failure}; retrying in {pause_s:g} s")
        queue = progress.to_score
        self._see_alive(progress.alive.get("reward", 0))
        count = self._scaler.num_to_request(queue, self._workers.num_requested, now)
        if count:
            self._note(f"{queue} transcripts to score: requesting {count} elastic reward worker{'s' * (count > 1)}")
            self._workers.request(count)
        elif self._workers.num_pending and self._scaler.should_cancel_pending(queue, now):
            self._note("no transcripts to score: cancelling the elastic reward workers that have not started")
            self._workers.cancel_pending()
        return queue > 0 and self._num_alive == 0 and self._workers.num_pending > 0

    def _see_alive(self, alive: int) -> None:
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
