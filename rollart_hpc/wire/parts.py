"""Sending and receiving the parts of a message, fast. Owns flags and copying; knows no message.

pyzmq's own calls check every part, build flags from enums and ask the socket after each part whether more follow. That
costs more than the message itself when most of them are a header of 50 bytes and a few hundred tokens. So its backend
is called directly. Small parts are copied: sharing one costs a reference that ZeroMQ's thread must give back through
Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import zmq
from zmq.backend import Socket as Bare

from rollart_hpc.types import Frame

_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_REST = 0  # of a message whose first part is there: it arrives as a whole
_SHARED_BYTES = 64 << 10
_send: Callable[..., Any] = Bare.send
_recv: Callable[..., Any] = Bare.recv


def send_parts(socket: zmq.Socket[bytes], parts: Sequence[Frame]) -> None:
    """Raises zmq.Again if the queue is full; then nothing was sent."""
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
