"""Which jobs of its own a run submits and cancels. Owns that decision and its back-off; calls no Slurm.

    wanted, no job in the queue      submit one; after a job that ended, with growing delays until an agent came again
    wanted, a job in the queue       leave it alone, whoever submitted it: Slurm requeues it, or it waits
    wanted, two jobs                 cancel all but the one that runs, else the oldest
    not wanted                       cancel

A decision needs a fresh look at the queue, so that a call of sbatch which timed out never leads to a second job.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from rollart_hpc.launch.slurm.queue import OVER, PENDING, RUNNING, WAITING

FIRST_DELAY_S, LONGEST_DELAY_S = 1.0, 300.0


class QueuedJob(NamedTuple):
    """A job of the run in Slurm's queue, or one that ended a short while ago."""

    unit: str
    job: int
    state: str  # Slurm's
    reason: str = ""


class Orders(NamedTuple):
    submit: list[str]  # units
    cancel: list[int]
    ended: list[QueuedJob]  # since the last look


@dataclass
class Unit:
    job: QueuedJob | None = None  # the live one
    has_come: bool = False  # an agent of its last job was there
    num_failures: int = 0  # jobs in a row that ended before an agent came, or were refused
    due_s: float = -math.inf


@dataclass
class Fleet:
    wanted: set[str] = field(default_factory=set)
    _units: defaultdict[str, Unit] = field(default_factory=lambda: defaultdict(Unit))

    def came(self, unit: str) -> None:
        """An agent of its job is there."""
        known = self._units[unit]
        known.has_come, known.num_failures = True, 0

    def refused(self, unit: str, now: float) -> None:
        """Slurm did not accept its job."""
        self._fail(self._units[unit], now)

    def submitted(self, unit: str, job: int) -> None:
        known = self._units[unit]
        known.job, known.has_come = QueuedJob(unit, job, PENDING), False

    def look(self, rows: Iterable[QueuedJob], now: float) -> Orders:
        """`rows`: all jobs of the run's units that Slurm knows now."""
        orders = Orders([], [], [])
        by_unit: defaultdict[str, list[QueuedJob]] = defaultdict(list)
        for row in rows:
            by_unit[row.unit].append(row)
        for unit in sorted({*self.wanted, *self._units, *by_unit}):
            self._look_at(unit, by_unit[unit], now, orders)
        return orders

    def _look_at(self, unit: str, rows: list[QueuedJob], now: float, orders: Orders) -> None:
        known, before = self._units[unit], self._units[unit].job
        live = sorted((row for row in rows if row.state not in OVER), key=lambda row: (row.state != RUNNING, row.job))
        known.job = live[0] if live else None
        if before is not None and all(row.job != before.job for row in live):
            orders.ended.append(next((row for row in rows if row.job == before.job), before._replace(state="UNKNOWN")))
            if unit in self.wanted:
                self._fail(known, now)
        orders.cancel.extend(row.job for row in (live[1:] if unit in self.wanted else live))
        if unit in self.wanted and not live and now >= known.due_s:
            orders.submit.append(unit)

    def _fail(self, known: Unit, now: float) -> None:
        if known.has_come:
            known.has_come, known.num_failures = False, 0
        else:
            known.num_failures += 1
        known.due_s = now + min(LONGEST_DELAY_S, FIRST_DELAY_S * 2**known.num_failures)

    def num_failures(self, unit: str) -> int:
        return self._units[unit].num_failures if unit in self._units else 0

    def live(self) -> list[QueuedJob]:
        return [known.job for known in self._units.values() if known.job is not None]

    def pending(self) -> list[QueuedJob]:
        return [job for job in self.live() if job.state in WAITING and job.unit in self.wanted]
