"""Who came and went, over all controllers of a run. Owns the counts; is fed with the events of metrics.jsonl in order.

the controller ended the run    whoever was there has left in good order
a controller after no such end  the one before it was lost, and so was all it had
the supervisor                  outlives controllers: one that is there again was not lost
"""

from __future__ import annotations

from collections import Counter

from rollart_hpc.vocabulary import EventKind

_GONE = (EventKind.WORKER_LOST, EventKind.WORKER_LEFT)
_ENDS = tuple(kind for kind in EventKind if kind.ends_run)


class Roll:
    def __init__(self) -> None:
        self.joined: Counter[str] = Counter()  # by role, as all of these
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
