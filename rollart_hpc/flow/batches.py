"""Which groups train in which step. Owns the buffer of complete groups and the batch under way.

A batch holds exactly `groups_per_step` whole groups, as many of each task as the mix deals. With
streaming a group leaves for the trainer as soon as its task has an open place; otherwise the batch
leaves in one piece. Until the step is committed its groups stay here, so that a lost trainer costs
nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.mix import TaskMix
from rollart_hpc.flow.policy import Policy
from rollart_hpc.flow.state import Group


class Batches:
    def __init__(
        self,
        policy: Policy,
        mix: TaskMix,
        emit: Callable[[ev.Command], None],
        oldest_incomplete: Callable[[], int],
    ) -> None:
        self.policy = policy
        self.mix = mix
        self.buffer: list[Group] = []
        self.taken: list[Group] = []
        self.trainer = ""  # who waits for this batch; "" = nobody
        self.step = 0
        self.chunks = 0
        self._emit = emit
        self._oldest_incomplete = oldest_incomplete

    @property
    def is_open(self) -> bool:
        return bool(self.trainer) and not self.is_closed

    @property
    def is_closed(self) -> bool:
        return len(self.taken) == self.policy.groups_per_step

    @property
    def next_step(self) -> int:
        """The earliest step that a group outside the batch can still train in."""
        return self.step + 1 if self.is_closed else self.step

    def taken_by_task(self) -> dict[str, int]:
        return dict(Counter(group.task for group in self.taken))

    def add(self, group: Group) -> None:
        self.buffer.append(group)

    def open(self, step: int, trainer: str) -> None:
        assert not self.taken, "a batch was opened before the last one was settled"
        self.step, self.trainer, self.chunks = step, trainer, 0

    def abandon(self) -> None:
        """The trainer is lost: its uncommitted groups wait again."""
        self.buffer = self.taken + self.buffer
        self.taken, self.trainer = [], ""

    def commit(self) -> list[Group]:
        trained, self.taken, self.trainer = self.taken, [], ""
        self.step += 1
        return trained

    def fill(self) -> bool:
        """Send what the open batch can take now; True if that closed it."""
        if not self.is_open or not self.buffer:
            return False
        ready = self._ready()
        complete = len(self.taken) + len(ready) == self.policy.groups_per_step
        if not ready or not (complete or self.policy.streaming):
            return False
        for group in ready:
            self.buffer.remove(group)
        self.taken += ready
        ids = tuple(group.id for group in ready)
        self._emit(ev.SendChunk(self.trainer, self.step, self.chunks, ids, self.is_closed))
        self.chunks += 1
        return self.is_closed

    def _ready(self) -> list[Group]:
        """Buffered groups that have a place in the open batch: oldest version first, then first complete."""
        room = Counter(self.mix.quota(self.step))
        room.subtract(self.taken_by_task())
        chosen: list[Group] = []
        for group in sorted(self.buffer, key=self._order):
            if room[group.task] > 0:
                room[group.task] -= 1
                chosen.append(group)
        return self._unbroken(chosen) if self.policy.in_order else chosen

    def _order(self, group: Group) -> tuple[int, int]:
        if self.policy.in_order:
            return (0, group.id)
        return (group.version or 0, group.completed_as)

    def _unbroken(self, chosen: list[Group]) -> list[Group]:
        """In order: only groups older than any that is still being played."""
        limit = self._oldest_incomplete()
        return [group for group in chosen if group.id < limit]
