"""Event files for TensorBoard, scalars only. Owns their binary format; knows no metrics.

The usual writers import torch if it is installed, which a controller must not. The format is small. A record is
length, masked crc32c of the length, data, masked crc32c of the data. The data is a protobuf `Event`
(1: wall time, 2: step, 3: file version, 5: summary of values (1: tag, 2: float)).
"""

from __future__ import annotations

import os
import socket
import struct
import time
from pathlib import Path

_POLYNOMIAL = 0x82F63B78  # crc32c, reflected


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc_table()


def _masked_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    """A length-delimited protobuf field."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked_crc(length)) + data + struct.pack("<I", _masked_crc(data))


def event(step: int, scalars: dict[str, float], wall_time_s: float) -> bytes:
    values = (_field(1, tag.encode()) + b"\x15" + struct.pack("<f", value) for tag, value in scalars.items())
    summary = b"".join(_field(1, value) for value in values)
    return b"\x09" + struct.pack("<d", wall_time_s) + b"\x10" + _varint(step) + _field(5, summary)


class EventFile:
    """Appends events. A TensorBoard that watches the directory sees them at once."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        now = time.time()
        path = directory / f"events.out.tfevents.{int(now)}.{socket.gethostname()}.{os.getpid()}"
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(self._fd, record(b"\x09" + struct.pack("<d", now) + _field(3, b"brain.Event:2")))

    def add(self, step: int, scalars: dict[str, float]) -> None:
        os.write(self._fd, record(event(step, scalars, time.time())))

    def close(self) -> None:
        os.close(self._fd)
