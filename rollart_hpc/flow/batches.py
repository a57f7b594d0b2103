"""Which groups train in which step. Owns the buffer of complete groups and the batch under way.

A batch holds exactly `groups_per_step` whole groups, as many of each task as the mix deals. With
streaming a group leaves for the trainer as soon as its task has an open place; otherwise the batch
leaves in one piece. Until the step is committed its groups stay here, so that a lost trainer costs
nothing.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.mix import TaskMix
from rollart_hpc.flow.rules import FlowRules
from rollart_hpc.flow.state import Group

BURST = 16  # maximum groups per chunk, so that a large chunk does not delay turns
Order = tuple[int, int]  # lowest trains first


class Batches:
    def __init__(
        self,
        rules: FlowRules,
        mix: TaskMix,
        emit: Callable[[ev.Command], None],
        oldest_incomplete: Callable[[], int],
    ) -> None:
        self.rules = rules
        self.mix = mix
        self.buffer: dict[int, Group] = {}
        self.taken: dict[int, Group] = {}
        self.trainer = ""  # who waits for this batch; "" = nobody
        self.step = 0
        self.chunks = 0
        self._emit = emit
        self._oldest_incomplete = oldest_incomplete
        self._waiting: dict[str, list[tuple[Order, int]]] = {task: [] for task in rules.tasks}  # heaps of the buffer
        self._num_buffered: Counter[str] = Counter()
        self._num_taken: Counter[str] = Counter()
        self._is_due = False  # something changed since the last call

    @property
    def is_open(self) -> bool:
        return bool(self.trainer) and not self.is_closed

    @property
    def is_closed(self) -> bool:
        return len(self.taken) == self.rules.groups_per_step

    @property
    def next_step(self) -> int:
        """The earliest step that a group outside the batch can still train in."""
        return self.step + 1 if self.is_closed else self.step

    @property
    def has_backlog(self) -> bool:
        """True if another chunk may be ready."""
        return self._is_due and self.is_open and bool(self.buffer)

    def num_taken(self, task: str) -> int:
        return self._num_taken[task]

    def taken_by_task(self) -> dict[str, int]:
        return dict(self._num_taken)

    def look_again(self) -> None:
        """The mix changed, or a group that others waited for was dropped."""
        self._is_due = True

    def add(self, group: Group) -> None:
        self.buffer[group.id] = group
        self._num_buffered[group.task] += 1
        heapq.heappush(self._waiting[group.task], (self._order(group), group.id))
        self._is_due = True

    def discard(self, group: Group) -> None:
        """Remove a dropped group. Its heap entry is skipped later."""
        if self.buffer.pop(group.id, None) is not None:
            self._num_buffered[group.task] -= 1
        self._is_due = True

    def open(self, step: int, trainer: str) -> None:
        assert not self.taken, "a batch was opened before the last one was settled"
        self.step, self.trainer, self.chunks = step, trainer, 0
        self._is_due = True

    def abandon(self) -> list[Group]:
        """The trainer was lost. Return its uncommitted groups to the buffer."""
        returned = list(self.taken.values())
        self._settle()
        for group in returned:
            self.add(group)
        return returned

    def commit(self) -> list[Group]:
        trained = list(self.taken.values())
        self._settle()
        self.step += 1
        return trained

    def _settle(self) -> None:
        self.taken, self.trainer = {}, ""
        self._num_taken.clear()

    def fill(self) -> list[Group]:
        """Send the groups that the open batch can take now, and return them."""
        if not self._is_due or not self.is_open or not self.buffer:
            return []
        self._is_due = False
        quota = self.mix.quota(self.step)
        if not self.rules.streaming and not self._is_complete(quota):
            return []
        chosen: list[tuple[Order, int]] = []
        for task, places in quota.items():
            chosen += self._take(task, min(places - self._num_taken[task], BURST - len(chosen)))
        if not chosen:
            return []
        self._is_due = len(chosen) == BURST
        groups = [self.buffer.pop(number) for _, number in sorted(chosen)]
        for group in groups:
            self.taken[group.id] = group
            self._num_taken[group.task] += 1
            self._num_buffered[group.task] -= 1
        self._emit(ev.SendChunk(self.trainer, self.step, self.chunks, tuple(groups), self.is_closed))
        self.chunks += 1
        return groups

    def _is_complete(self, quota: dict[str, int]) -> bool:
        if self.rules.in_order:
            limit = self._oldest_incomplete()
            ready = Counter(group.task for group in self.buffer.values() if group.id < limit)
        else:
            ready = self._num_buffered
        return all(self._num_taken[task] + ready[task] >= places for task, places in quota.items())

    def _take(self, task: str, places: int) -> list[tuple[Order, int]]:
        """Buffered groups of a task, oldest version first, then first complete."""
        heap = self._waiting[task]
        chosen: list[tuple[Order, int]] = []
        while heap and len(chosen) < places:
            if heap[0][1] in self.buffer:
                if self.rules.in_order and heap[0][1] >= self._oldest_incomplete():
                    break  # only groups older than any that is still being played
                chosen.append(heap[0])
            heapq.heappop(heap)
        return chosen

    def _order(self, group: Group) -> Order:
        if self.rules.in_order:
            return (0, group.id)
        return (group.version or 0, group.completed_as)
