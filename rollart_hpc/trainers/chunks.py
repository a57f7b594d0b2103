"""Turns chunks from the wire into groups to train. Owns chunk order and the layout of frames; knows no trainer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollart_hpc.errors import SiteError
from rollart_hpc.types import Frame, Sample, TokenRecord, TrainGroup
from rollart_hpc.wire.messages import Chunk, ChunkItem

_FRAMES_PER_ITEM = 3

Part = tuple[Chunk, list[Frame]]


class Inbox:
    """Chunks of one batch that rank 0 has received but not yet trained, in order."""

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._next_index = 0  # 0: no batch has started

    def put(self, chunk: Chunk, frames: list[Frame]) -> bool:
        """Add a chunk; False if its batch was abandoned. A first chunk starts the batch again."""
        if chunk.index == 0:
            self.clear()
        elif self._next_index == 0:
            return False
        if chunk.index != self._next_index:
            raise SiteError(f"step {chunk.step}: received chunk {chunk.index}, expected {self._next_index}")
        self._parts.append((chunk, frames))
        self._next_index = 0 if chunk.last else chunk.index + 1
        return True

    @property
    def is_complete(self) -> bool:
        return bool(self._parts) and self._parts[-1][0].last

    def take(self) -> Part | None:
        """Remove all chunks and return them as one, with the index of the first."""
        if not self._parts:
            return None
        first, last = self._parts[0][0], self._parts[-1][0]
        items = [item for chunk, _ in self._parts for item in chunk.items]
        frames = [frame for _, part in self._parts for frame in part]
        self._parts = []
        return Chunk(first.step, first.index, items, last.last), frames

    def clear(self) -> None:
        """Abandon the batch."""
        self._parts, self._next_index = [], 0


def groups_of(chunk: Chunk, frames: list[Frame]) -> list[TrainGroup]:
    """Complete groups, in order of first appearance. Arrays are views of the frames."""
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
        known = item.reward, item.success, item.is_cut, item.states, item.turn_rewards
        yield Sample(item.trajectory, item.group, item.task, cut, *known)
