"""From a chunk on the wire to groups that can be trained. Owns how frames are cut; knows no trainer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rollart_hpc.errors import SiteError
from rollart_hpc.types import Frame, Sample, TokenRecord, TrainGroup
from rollart_hpc.wire.messages import Chunk, ChunkItem

_FRAMES_PER_ITEM = 3


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
