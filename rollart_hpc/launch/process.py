"""A process of the run: the contract of a child, and children of this machine.

A local one is started in its own session, watched by pidfd and ended by id. Owns starting and ending it, and its log
file. Does not decide whether or where a process runs (`launch.place`). Children on other nodes: `launch.agents`.
"""

from __future__ import annotations

import errno
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

from rollart_hpc.descriptors import with_relief
from rollart_hpc.errors import SiteError
from rollart_hpc.files import FILE_MODE, disk_errors
from rollart_hpc.launch.plan import Proc
from rollart_hpc.processes.lifetime import seat_incarnation

_START_FIXES = {
    errno.ENOMEM: "the machine has no memory left: end other programs, or use fewer processes",
    errno.EAGAIN: "the limit of processes is reached: raise `ulimit -u`, or use fewer processes",
    errno.EMFILE: "raise the limit of open files (`ulimit -Hn`, or limits.conf)",
}


class CantStart(SiteError):
    """The machine refuses another process: it lacks memory, processes or descriptors."""


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


class Child(Protocol):
    """A process of the run, here or on another node, as the supervisor sees it."""

    order: Order
    started_s: float
    is_orphan: bool  # its node is lost, and the process with it
    reason: str  # why it ended, if its agent knows

    @property
    def pid(self) -> int:
        """On its host; 0 until it is known."""
        ...

    @property
    def host(self) -> str:
        """Empty: this one."""
        ...

    @property
    def proc(self) -> Proc:
        return self.order.proc

    @property
    def name(self) -> str:
        return self.order.proc.name

    @property
    def log(self) -> Path:
        return self.order.log

    def fileno(self) -> int:
        """For selectors: readable once the process has ended."""
        ...

    def has_ended(self) -> bool:
        return bool(wait_for_any([self], 0.0))

    def signal(self, number: int) -> None: ...

    def kill_group(self) -> None:
        """Kill the process and everything it started."""
        ...

    def reap(self, timeout_s: float = 30.0) -> int:
        """The exit code (negative: a signal). Kills the rest of its process group first."""
        ...


@dataclass
class LocalChild(Child):
    """A process of this machine, watched by its pidfd."""

    order: Order
    popen: Process
    pidfd: int
    started_s: float = field(default_factory=time.monotonic)
    is_orphan: bool = False
    reason: str = ""
    host: str = ""

    @property
    def pid(self) -> int:
        return self.popen.pid

    def fileno(self) -> int:
        return self.pidfd

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def kill_group(self) -> None:
        """Its id can't have been reused, because it is not reaped yet."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def reap(self, timeout_s: float = 30.0) -> int:
        self.kill_group()
        code = self.popen.wait(timeout_s)
        os.close(self.pidfd)
        return code


def open_log(path: Path) -> int:
    with disk_errors(path):
        return with_relief(lambda: os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE))


def start_child(
    order: Order,
    command: list[str],
    environment: dict[str, str],
    pass_fds: tuple[int, ...] = (),
    *,
    kind: type[LocalChild] = LocalChild,
) -> LocalChild:
    """Call from the main thread: the kernel ends a child when the thread that started it ends."""
    output = open_log(order.log)
    try:
        popen = with_relief(
            lambda: subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
                pass_fds=pass_fds,
            )
        )
    except OSError as error:
        what = f"can't start {order.proc.name}: {error.strerror}"
        raise CantStart(what, _START_FIXES.get(error.errno or 0, "check the machine's limits")) from None
    finally:
        os.close(output)
    return kind(order, popen, with_relief(lambda: os.pidfd_open(popen.pid)))


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
    waiting = list(children)
    while waiting:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            return
        ended = wait_for_any(waiting, left_s)
        waiting = [child for child in waiting if child.fileno() not in ended]


def wait_for_any(children: Sequence[Child], timeout_s: float) -> set[int]:
    """Descriptors of those that have ended; waits for the first, or until the timeout."""
    poll = select.poll()
    for child in children:
        poll.register(child.fileno(), select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(timeout_s * 1000)}
