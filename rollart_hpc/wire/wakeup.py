"""Lets one thread wake another that waits in a selector. Owns an eventfd and nothing else."""

from __future__ import annotations

import contextlib
import os
import select


class Wakeup:
    """An eventfd: readable from `set` until `clear`, by any thread and any selector."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set(self) -> None:
        os.eventfd_write(self.fd, 1)

    def clear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def wait(self, timeout_s: float | None) -> None:
        poll = select.poll()  # not select(): descriptors may exceed 1024
        poll.register(self.fd, select.POLLIN)
        poll.poll(None if timeout_s is None else int(timeout_s * 1000) + 1)

    def close(self) -> None:
        os.close(self.fd)
