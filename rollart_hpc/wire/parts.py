"""Sends and receives the parts of a message, fast. Owns flags and copying; knows no message.

pyzmq's own calls check every part, build flags from enums, and ask the socket after each part whether more follow. For
a typical message (a header of 50 bytes and a few hundred tokens) that costs more than the message itself, so we call
its backend directly. Small parts are copied: to share one, ZeroMQ's thread would have to release a Python reference.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import zmq
from zmq.backend import Socket as Bare

from rollart_hpc.types import Frame

_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_REST = 0  # blocking is fine after the first part: a message arrives as a whole
_SHARED_BYTES = 64 << 10
_send: Callable[..., Any] = Bare.send
_recv: Callable[..., Any] = Bare.recv


def send_parts(socket: zmq.Socket[bytes], parts: Sequence[Frame]) -> None:
    """Raises zmq.Again if the queue is full; nothing is sent then."""
    *others, last = parts
    for part in others:
        _send(socket, part, _MORE, len(part) < _SHARED_BYTES)
    _send(socket, last, _LAST, len(last) < _SHARED_BYTES)


def receive_parts(socket: zmq.Socket[bytes]) -> list[bytes]:
    """Raises zmq.Again if nothing has arrived."""
    frame = _recv(socket, _LAST, False)
    parts = [frame.bytes]
    while frame.more:
        frame = _recv(socket, _REST, False)
        parts.append(frame.bytes)
    return parts
