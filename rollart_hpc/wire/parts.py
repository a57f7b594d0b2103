"""Sending and receiving the parts of a message, fast. Owns flags and copying; knows no message.

pyzmq's own multipart calls check every part and build flags from enums, which costs more than the message itself when
most of them are a header of 50 bytes and a few hundred tokens. Small parts are copied: sharing one costs a reference
that ZeroMQ's thread must give back through Python.
"""

from __future__ import annotations

from collections.abc import Sequence

import zmq

from rollart_hpc.types import Frame

_LAST = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_REST = 0  # of a message whose first part is there: it arrives as a whole
_RCVMORE = int(zmq.RCVMORE)
_SHARED_BYTES = 64 << 10


def send_parts(socket: zmq.Socket[bytes], parts: Sequence[Frame]) -> None:
    """Raises zmq.Again if the queue is full; then nothing was sent."""
    last = len(parts) - 1
    for number, part in enumerate(parts):
        socket.send(part, _MORE if number < last else _LAST, len(part) < _SHARED_BYTES)


def receive_parts(socket: zmq.Socket[bytes]) -> list[bytes]:
    """Raises zmq.Again if nothing has arrived."""
    parts = [socket.recv(_LAST)]
    while socket.getsockopt(_RCVMORE):
        parts.append(socket.recv(_REST))
    return parts
