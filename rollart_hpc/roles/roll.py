"""Counts processes that joined, left and were lost, over all controllers of a run. Fed with metrics.jsonl's events.

the controller ended the run      all processes present have left
a controller without such an end  the previous controller and all its processes were lost
the supervisor                    outlives controllers: one that joins again was not lost
"""

from __future__ import annotations

from collections import Counter

from rollart_hpc.vocabulary import EventKind

_GONE = (EventKind.WORKER_LOST, EventKind.WORKER_LEFT)
_ENDS = tuple(kind for kind in EventKind if kind.ends_run)


class Roll:
    def __init__(self) -> None:
        self.joined: Counter[str] = Counter()  # by role, like all of these
        self.lost: Counter[str] = Counter()
        self.left: Counter[str] = Counter()
        self._present: Counter[str] = Counter()
        self._has_ended = False
        self._supervisor = ""

    def see(self, what: str, role: str, detail: str) -> None:
        if what == EventKind.WORKER_JOINED:
            self._join(role, detail)
        elif what in _GONE and self._present[role]:
            self._present[role] -= 1
            (self.lost if what == EventKind.WORKER_LOST else self.left)[role] += 1
        elif what in _ENDS:
            self._has_ended = True

    def _join(self, role: str, detail: str) -> None:
        if role == "controller":
            self._begin()
        self._present[role] += 1
        if role == "supervisor" and detail == self._supervisor:
            self.lost[role] -= 1
        else:
            self.joined[role] += 1
        if role == "supervisor":
            self._supervisor = detail

    def _begin(self) -> None:
        (self.left if self._has_ended else self.lost).update(self._present)
        if self._has_ended:
            self._supervisor = ""
        self._present.clear()
        self._has_ended = False
