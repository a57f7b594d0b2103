"""Sends and receives the parts of a message, fast. Owns frames, flags and copying; knows no message.

ZeroMQ encrypts, allocates and queues every frame by itself. For a typical message (a header of 50 bytes and a few
hundred tokens) that costs more than the content, so small parts travel together in one frame. The first frame begins
with a table: the number of parts and the length of each. Then the parts follow. A frame ends where the next part would
make it too large, and a large part is a frame of its own, which is not copied.

pyzmq's own calls check every frame, build flags from enums, and ask the socket after each frame whether more follow. So
we call its backend directly. Small frames are copied: to share one, ZeroMQ's thread would have to release a Python
reference.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import zmq
from zmq.backend import Socket as Bare

from rollart_hpc.types import Frame

PACKED_BYTES = 32 << 10  # encrypted in a few dozen microseconds, in which no other connection is served
_SHARED_BYTES = 64 << 10
_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_REST = 0  # blocking is fine after the first frame: a message arrives as a whole
_COUNT = struct.Struct("<H")
_send: Callable[..., Any] = Bare.send
_recv: Callable[..., Any] = Bare.recv


class TornMessage(ValueError):
    """The table does not fit the frames."""


class Oversized(ValueError):
    """A message larger than allowed. It was read to its end, but not kept."""

    def __init__(self, identity: bytes, what: str) -> None:
        super().__init__(what)
        self.identity = identity


@lru_cache
def _table(num: int) -> struct.Struct:
    return struct.Struct(f"<H{num}I")


def pack(parts: Sequence[Frame]) -> list[Frame]:
    """The frames of a message."""
    sizes = [len(part) if type(part) is bytes else memoryview(part).nbytes for part in parts]
    table = _table(len(parts)).pack(len(parts), *sizes)
    if sum(sizes) < PACKED_BYTES:
        return [b"".join((table, *parts))]
    return list(_frames(table, parts, sizes))


def _frames(table: bytes, parts: Sequence[Frame], sizes: list[int]) -> Iterator[Frame]:
    """No frame is empty: an empty part is only in the table."""
    together, room = [table], PACKED_BYTES
    for part, size in zip(parts, sizes, strict=True):
        if size > room and together:
            yield b"".join(together)
            together, room = [], PACKED_BYTES
        if size > room:
            yield part
        elif size:
            together.append(bytes(part))
            room -= size
    if together:
        yield b"".join(together)


def unpack(frames: Sequence[Frame]) -> list[Frame]:
    """The parts of a message. Raises TornMessage."""
    try:
        table = _table(*_COUNT.unpack_from(frames[0]))
        _, *sizes = table.unpack_from(frames[0])
    except (IndexError, struct.error):
        raise TornMessage("the table of parts is missing or cut off") from None
    parts: list[Frame] = []
    rest = iter(frames)
    frame, start = next(rest), table.size
    for size in sizes:
        if start == len(frame) and size:
            frame, start = next(rest, b""), 0
        end = start + size
        # A copy is aligned in memory; a piece of a frame is not.
        parts.append(frame if not start and end == len(frame) else bytes(frame[start:end]))
        if end > len(frame):
            raise TornMessage(f"{len(frames)} frames are shorter than the table of parts says")
        start = end
    if start != len(frame) or next(rest, None) is not None:
        raise TornMessage(f"{len(frames)} frames are longer than the table of parts says")
    return parts


def send_parts(socket: zmq.Socket[bytes], parts: Sequence[Frame], to: bytes | None = None) -> None:
    """`to`: the receiver's identity, if the socket is a ROUTER. Raises zmq.Again if the queue is full."""
    *others, last = pack(parts)
    if to is not None:
        _send(socket, to, _MORE, True)
    for frame in others:
        _send(socket, frame, _MORE, len(frame) < _SHARED_BYTES)
    _send(socket, last, _LAST, len(last) < _SHARED_BYTES)


def receive_frames(socket: zmq.Socket[bytes]) -> list[bytes]:
    """The frames of the next message, to be unpacked. Raises zmq.Again if nothing has arrived."""
    frame = _recv(socket, _LAST, False)
    frames = [frame.bytes]
    while frame.more:
        frame = _recv(socket, _REST, False)
        frames.append(frame.bytes)
    return frames


def receive_from_peer(
    router: zmq.Socket[bytes], max_bytes: int, max_frames: int
) -> tuple[bytes, list[bytes], zmq.Frame]:
    """The identity of a peer and the frames of its next message. The last frame also knows the peer's key.

    Raises zmq.Again if nothing has arrived, and Oversized. The frames of a message that is too large are freed one by
    one, without a copy.
    """
    frame = _recv(router, _LAST, False)
    identity, left = frame.bytes, max_bytes
    frames: list[bytes] = []
    while frame.more:
        frame = _recv(router, _REST, False)
        left -= len(frame)
        if left < 0 or len(frames) >= max_frames:
            left = -1
            frames.clear()
        else:
            frames.append(frame.bytes)
    if left < 0:
        raise Oversized(identity, f"more than {max_bytes} bytes or {max_frames} frames")
    return identity, frames, frame
