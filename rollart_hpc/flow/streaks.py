"""Failures in a row, of each task at each worker. Owns the counts; blames nobody itself.

A reset ends the streak of failed resets. A turn ends the streak of failed steps if it lies at least as deep in the play
as the step that failed last: an environment that always raises in its third turn has good first and second turns.
"""

from __future__ import annotations

from enum import StrEnum


class Kind(StrEnum):
    """What failed, as warnings name it."""

    RESET = "resets"
    STEP = "plays"
    SCORE = "scores"


class Streaks:
    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], dict[Kind, tuple[int, int]]] = {}  # (task, worker) -> count, depth of last

    def failed(self, task: str, worker: str, kind: Kind, depth: int = 0) -> int:
        """Count it, and return how many it were in a row."""
        kinds = self.counts.setdefault((task, worker), {})
        count = kinds.get(kind, (0, 0))[0] + 1
        kinds[kind] = count, depth
        return count

    def worked(self, task: str, worker: str, kind: Kind, depth: int = 0) -> None:
        kinds = self.counts.get((task, worker))
        if kinds is not None and kind in kinds and depth >= kinds[kind][1]:
            del kinds[kind]
            if not kinds:
                del self.counts[task, worker]

    def ended_well(self, task: str, worker: str) -> None:
        for kind in (Kind.RESET, Kind.STEP):
            self.worked(task, worker, kind, depth=1 << 60)

    def num_failing(self, task: str, kind: Kind, limit: int) -> int:
        """Workers at which the task failed so often in a row. Looks at workers that fail, which are few."""
        return sum(kinds.get(kind, (0, 0))[0] >= limit for (name, _), kinds in self.counts.items() if name == task)

    def forget_worker(self, worker: str) -> None:
        if self.counts:
            self.counts = {key: kinds for key, kinds in self.counts.items() if key[1] != worker}

    def forget_task(self, task: str) -> None:
        if self.counts:
            self.counts = {key: kinds for key, kinds in self.counts.items() if key[0] != task}
