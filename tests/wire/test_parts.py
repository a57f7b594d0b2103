"""Parts of messages in frames, and what a receiver makes of frames that don't fit."""

from __future__ import annotations

import numpy as np
import pytest

from rollart_hpc.types import Frame
from rollart_hpc.wire.parts import PACKED_BYTES, TornMessage, pack, unpack

LARGE, HALF = bytes(PACKED_BYTES + 1), bytes(PACKED_BYTES // 2)


@pytest.mark.parametrize(
    ("parts", "num_frames"),
    [
        ([b"header"], 1),
        ([b"header", b"", b"ids"], 1),
        ([b""], 1),
        ([b"header", LARGE], 2),
        ([b"header", LARGE, b""], 2),
        ([b"header", LARGE, b"", LARGE], 3),
        ([b"header", LARGE, b"", b"ids", LARGE], 4),
        ([LARGE], 2),
        ([b"header", HALF, HALF, HALF, b"ids"], 3),
    ],
)
def test_parts_arrive_as_they_were_sent(parts: list[Frame], num_frames: int) -> None:
    frames = pack(parts)
    assert unpack(frames) == unpack([memoryview(frame) for frame in frames]) == parts
    assert len(frames) == num_frames


def test_a_large_part_is_not_copied() -> None:
    assert pack([b"header", LARGE])[1] is LARGE
    assert unpack([*pack([b"header", LARGE])])[1] is LARGE


def test_lengths_are_in_bytes_and_pieces_are_aligned() -> None:
    ids = np.arange(5, dtype=np.int32)
    _, sent = unpack([memoryview(frame) for frame in pack([b"odd", ids.data])])
    array = np.frombuffer(sent, np.int32)
    assert array.tolist() == ids.tolist() and array.flags.aligned


@pytest.mark.parametrize(
    "frames",
    [
        [],
        [b""],
        [b"\x01"],
        [b"\x01\x00\x05\x00"],
        [b"\xff\xff" + bytes(100)],
        [pack([b"header", b"ids"])[0][:-1]],
        [pack([b"header", b"ids"])[0] + b"more"],
        [*pack([b"header"]), b"more"],
        pack([b"header", LARGE])[:1],
        [*pack([b"header", LARGE])[:1], LARGE[1:]],
    ],
)
def test_frames_that_do_not_fit_the_table_are_refused(frames: list[Frame]) -> None:
    with pytest.raises(TornMessage):
        unpack(frames)
