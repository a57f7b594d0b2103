"""Signals that a selector can wait for. Owns the signal handlers while it is open; decides nothing."""

from __future__ import annotations

import signal
import socket
from collections import deque
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

CAUGHT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)


class Signals:
    """`fileno()` is readable after a signal; `take()` returns the signals in order."""

    def __init__(self) -> None:
        self._received: deque[int] = deque()
        self._reader, self._writer = socket.socketpair()
        self._before: dict[int, Any] = {}
        self._wakeup_before = -1

    def __enter__(self) -> Signals:
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._wakeup_before = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in CAUGHT:
            self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._reader.close()
        self._writer.close()

    def fileno(self) -> int:
        return self._reader.fileno()

    def take(self) -> list[int]:
        with suppress(BlockingIOError):
            self._reader.recv(4096)
        taken = list(self._received)
        self._received.clear()
        return taken

    def _receive(self, number: int, frame: FrameType | None) -> None:
        self._received.append(number)
