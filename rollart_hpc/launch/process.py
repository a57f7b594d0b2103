"""One child process of the supervisor: started in its own session, watched by pidfd, ended by id.

Owns starting and ending it, and its log file. Does not decide whether or where a process runs (`launch.place`).
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from rollart_hpc.errors import SiteError
from rollart_hpc.files import FILE_MODE, disk_errors
from rollart_hpc.launch.plan import Proc
from rollart_hpc.processes.lifetime import seat_incarnation


def new_incarnation() -> str:
    return secrets.token_hex(8)


@dataclass(frozen=True)
class Order:
    """One start of a process: what a place needs to know in addition to the command."""

    proc: Proc
    attempt: int
    log: Path
    incarnation: str = field(default_factory=new_incarnation)
    seats: tuple[Proc, ...] = ()  # of an MPI world: the process of each rank

    @property
    def members(self) -> list[tuple[Proc, str]]:
        """The processes of this start, each with its incarnation."""
        if not self.seats:
            return [(self.proc, self.incarnation)]
        return [(proc, seat_incarnation(self.incarnation, rank)) for rank, proc in enumerate(self.seats)]


class Process(Protocol):
    """`subprocess.Popen`, or an equivalent."""

    @property
    def pid(self) -> int: ...
    def wait(self, timeout: float | None = None) -> int: ...


@dataclass
class Child:
    order: Order
    popen: Process
    pidfd: int
    started_s: float = field(default_factory=time.monotonic)

    @property
    def proc(self) -> Proc:
        return self.order.proc

    @property
    def name(self) -> str:
        return self.order.proc.name

    @property
    def log(self) -> Path:
        return self.order.log

    @property
    def pid(self) -> int:
        return self.popen.pid

    def fileno(self) -> int:
        """For selectors: readable once the process has ended."""
        return self.pidfd

    def has_ended(self) -> bool:
        return bool(select.select([self.pidfd], [], [], 0)[0])

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def kill_group(self) -> None:
        """Kill the process and everything it started. Its id can't have been reused, because it is not reaped yet."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self, timeout_s: float = 30.0) -> int:
        """The exit code (negative: a signal). Kills the rest of its process group first."""
        self.kill_group()
        code = self.popen.wait(timeout_s)
        os.close(self.pidfd)
        return code


def open_log(path: Path) -> int:
    with disk_errors(path):
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)


def start_child(
    order: Order,
    command: list[str],
    environment: dict[str, str],
    pass_fds: tuple[int, ...] = (),
    *,
    kind: type[Child] = Child,
    stdin: int = subprocess.DEVNULL,
) -> Child:
    """Call from the main thread: the kernel ends a child when the thread that started it ends."""
    output = open_log(order.log)
    try:
        popen = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
            pass_fds=pass_fds,
        )
    except OSError as error:
        raise SiteError(
            f"can't start {order.proc.name}: {error.strerror}", "check the machine's limits on processes and memory"
        ) from None
    finally:
        os.close(output)
    return kind(order, popen, os.pidfd_open(popen.pid))


def end_children(children: Iterable[Child], grace_s: float = 0.0, term_s: float = 0.0) -> dict[str, int]:
    """End them all and return their exit codes: wait `grace_s`, SIGTERM, wait `term_s`, SIGKILL."""
    running = list(children)
    wait_for(running, grace_s)
    if term_s > 0:
        for child in running:
            child.signal(signal.SIGTERM)
        wait_for(running, term_s)
    for child in running:
        child.kill_group()
    return {child.name: child.reap() for child in running}


def wait_for(children: Sequence[Child], timeout_s: float) -> None:
    """Wait until all have ended, or until the timeout."""
    deadline_s = time.monotonic() + timeout_s
    poll = select.poll()
    waiting = {child.pidfd for child in children}
    for fd in waiting:
        poll.register(fd, select.POLLIN)
    while waiting:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return
        for fd, _ in poll.poll(left_s * 1000):
            poll.unregister(fd)
            waiting.discard(fd)
