"""From chunks on the wire to groups that can be trained. Owns their order and how frames are cut; knows no trainer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollart_hpc.errors import SiteError
from rollart_hpc.types import Frame, Sample, TokenRecord, TrainGroup
from rollart_hpc.wire.messages import Chunk, ChunkItem

_FRAMES_PER_ITEM = 3

Part = tuple[Chunk, list[Frame]]


class Inbox:
    """Chunks of one batch that rank 0 has received and not yet taken up, in their order."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._next_index = 0  # 0: no batch is under way

    def put(self, chunk: Chunk, frames: list[Frame]) -> bool:
        """False for the rest of a batch that was given up. A first chunk begins the batch anew."""
        if chunk.index == 0:
            self.clear()
        elif self._next_index == 0:
            return False
        if chunk.index != self._next_index:
            raise SiteError(f"step {chunk.step}: chunk {chunk.index} came, {self._next_index} was expected")
        self._parts.append((chunk, frames))
        self._next_index = 0 if chunk.last else chunk.index + 1
        return True

    @property
    def is_complete(self) -> bool:
        return bool(self._parts) and self._parts[-1][0].last

    def take(self) -> Part | None:
        """All of them as one, numbered as the first."""
        if not self._parts:
            return None
        first, last = self._parts[0][0], self._parts[-1][0]
        items = [item for chunk, _ in self._parts for item in chunk.items]
        frames = [frame for _, part in self._parts for frame in part]
        self._parts = []
        return Chunk(first.step, first.index, items, last.last), frames

    def clear(self) -> None:
        """The batch is given up."""
        self._parts, self._next_index = [], 0


def groups_of(chunk: Chunk, frames: list[Frame]) -> list[TrainGroup]:
    """Whole groups in the order in which they first appear. Arrays are views of the frames."""
    if len(frames) != _FRAMES_PER_ITEM * len(chunk.items):
        raise SiteError(f"chunk {chunk.index} of step {chunk.step}: {len(frames)} frames for {len(chunk.items)} items")
    groups: dict[int, TrainGroup] = {}
    for i, item in enumerate(chunk.items):
        group = groups.setdefault(item.group, TrainGroup(item.group, item.task))
        group.samples += _samples(item, frames[_FRAMES_PER_ITEM * i : _FRAMES_PER_ITEM * (i + 1)])
    return list(groups.values())


def _samples(item: ChunkItem, frames: list[Frame]) -> Iterator[Sample]:
    try:
        record = TokenRecord.from_frames(frames)
    except ValueError as error:
        raise SiteError(f"trajectory {item.trajectory}: {error}") from None
    if sum(item.sample_lengths) != len(record):
        raise SiteError(f"trajectory {item.trajectory}: {len(record)} tokens, expected {sum(item.sample_lengths)}")
    ends = np.cumsum(item.sample_lengths)
    for end, length in zip(ends, item.sample_lengths):
        part = slice(end - length, end)
        cut = TokenRecord(record.ids[part], record.logprobs[part], record.versions[part])
        yield Sample(item.trajectory, item.group, item.task, cut, item.reward)
