"""What a process does when it has no file descriptor left. Owns the reserve of descriptors and who can make room.

Connections come from outside, so anybody who reaches a port can use up a process's descriptors. A process that listens
keeps a reserve below its hard limit: the soft limit stays that much lower, until somebody in need asks for `relief`.
"""

from __future__ import annotations

import errno
import os
import resource
import time
from collections.abc import Callable
from typing import TypeVar

OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
_PATIENCE_S = 2.0
_PAUSE_S = 0.02
_reliefs: list[Callable[[], None]] = []  # each makes room for descriptors; any thread may call it

Result = TypeVar("Result")


def hard_limit() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (1 << 20) if hard == resource.RLIM_INFINITY else hard


def set_soft_limit(num: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (num if hard == resource.RLIM_INFINITY else min(num, hard), hard))


def num_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def add_relief(relief: Callable[[], None]) -> None:
    _reliefs.append(relief)


def remove_relief(relief: Callable[[], None]) -> None:
    _reliefs.remove(relief)


def relieve() -> None:
    for relief in list(_reliefs):
        relief()


def with_relief(action: Callable[[], Result]) -> Result:
    """What `action` returns. If it fails for lack of descriptors, it is tried again once there is room."""
    give_up_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return action()
        except OSError as error:
            if error.errno not in OUT_OF_FILES or not _reliefs or time.monotonic() > give_up_s:
                raise
        relieve()
        time.sleep(_PAUSE_S)


def need(num: int) -> None:
    """Make room for this many descriptors, if there is less: for code that can't be tried again."""
    held: list[int] = []
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        held.append(null)
        held.extend(os.dup(null) for _ in range(num - 1))
    except OSError as error:
        if error.errno not in OUT_OF_FILES:
            raise
        relieve()
    finally:
        for each in held:
            os.close(each)
