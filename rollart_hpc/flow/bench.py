"""Workers that are set aside. Owns why, for how long, and who offended before; moves nobody itself.

A worker that owed answers comes back as soon as it moves again: it was slow. One that never moves, or that failed, is
tried with a single piece of work after a pause; what works there ends the trial. Each offence within ten minutes of
the last doubles the pause. If a worker that owed answers has not moved after `REPLACE_S`, it is to be replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rollart_hpc.flow.state import Worker

PAUSE_S, LONGEST_S = 30.0, 600.0
REPLACE_S = 30.0
MEMORY_S = 600.0  # an offence is forgotten after this long without another one, beyond its own pause
MANY = 1000  # names remembered before old ones are forgotten
BLOCKED_S = 5.0  # a main loop that has not come around for this long is not tried


@dataclass(slots=True, eq=False)
class Aside:
    worker: Worker
    reason: str
    since_s: float
    pause_s: float
    hangs: bool  # it owed answers; otherwise it failed
    task: str = ""  # that failed there
    is_repeated: bool = False
    has_moved: bool = False
    is_told: bool = False
    blocked_s: float = -1e9  # when its main loop was last heard to be blocked


class Return(NamedTuple):
    aside: Aside
    on_trial: bool


class Bench:
    def __init__(self) -> None:
        self.aside: dict[str, Aside] = {}
        self._offences: dict[str, tuple[int, float]] = {}  # by worker: how many, and when they are forgotten

    def put(self, worker: Worker, reason: str, now: float, *, hangs: bool, task: str = "") -> None:
        count, forgotten_s = self._offences.get(worker.name, (0, 0.0))
        count = count + 1 if now < forgotten_s else 1
        pause_s = min(PAUSE_S * 2.0 ** (count - 1), LONGEST_S)
        self._offences[worker.name] = count, now + pause_s + MEMORY_S
        self.aside[worker.name] = Aside(worker, reason, now, pause_s, hangs, task, count > 1)

    def forget(self, name: str) -> None:
        """The worker was lost, or another process took its name. Its offences are remembered."""
        self.aside.pop(name, None)

    def is_repeated(self, name: str, now: float) -> bool:
        """True if it offended more than once lately: a new process of that name begins on trial."""
        count, forgotten_s = self._offences.get(name, (0, 0.0))
        return count > 1 and now < forgotten_s

    def heard(self, name: str, age_s: float, now: float) -> None:
        """It sent something. `age_s`: how long its main loop has been blocked."""
        entry = self.aside.get(name)
        if entry is None:
            return
        if age_s >= BLOCKED_S:
            entry.blocked_s = now
        else:
            entry.has_moved = True

    def returns(self, now: float) -> list[Return]:
        """Take out those that are used again from now on."""
        back = [Return(a, on_trial=self._is_doubtful(a)) for a in self.aside.values() if self._is_due(a, now)]
        for entry in back:
            del self.aside[entry.aside.worker.name]
        if not self.aside and len(self._offences) > MANY:
            self._offences = {name: each for name, each in self._offences.items() if now < each[1]}
        return back

    def release(self, task: str) -> list[Return]:
        """Take out those that failed only with this task: the task was at fault."""
        back = [Return(a, on_trial=False) for a in self.aside.values() if a.task == task]
        for entry in back:
            del self.aside[entry.aside.worker.name]
        return back

    def to_replace(self, now: float) -> list[Aside]:
        found = [a for a in self.aside.values() if a.hangs and not a.is_told and not a.has_moved]
        found = [a for a in found if now >= a.since_s + REPLACE_S]
        for entry in found:
            entry.is_told = True
        return found

    def _is_doubtful(self, entry: Aside) -> bool:
        return entry.is_repeated or not (entry.hangs and entry.has_moved)

    def _is_due(self, entry: Aside, now: float) -> bool:
        if not self._is_doubtful(entry):
            return True
        return now >= entry.since_s + entry.pause_s and now >= entry.blocked_s + 3 * BLOCKED_S
