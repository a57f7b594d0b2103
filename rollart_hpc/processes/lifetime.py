"""How long a process lives: with whom it ends, which signals it heeds. Owns the variables that tell it so."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import threading

from rollart_hpc.errors import EXIT_LINK_LOST

PARENT_VARIABLE = "ROLLART_PARENT_PID"  # the process ends with this parent
LEADER_VARIABLE = "ROLLART_LEADER_PID"  # ... or with this ancestor

STAYS_VARIABLE = "ROLLART_STAYS"  # SIGTERM is for the supervisor: the process ends when the controller says so

# Jobs have no way out: whatever asks a model hub or a usage server would wait for its time-out.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

_PR_SET_PDEATHSIG = 1


def stay_offline() -> None:
    """Before anything heavy is imported. What the user set stands."""
    for name, value in OFFLINE.items():
        os.environ.setdefault(name, value)


def raise_file_limit() -> int:
    """Allow as many open files as the system lets this process have; returns how many. Each connection is one, and the
    soft limit of many systems is 1,024: fewer than a large run has workers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def stay_if_told() -> bool:
    """Slurm tells every process of a job at once that its time is up, but a checkpoint needs all of them once more."""
    stays = bool(os.environ.pop(STAYS_VARIABLE, ""))
    if stays:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return stays


def seat_incarnation(incarnation: str, rank: int) -> str:
    """Of a process that was started together with others under one incarnation."""
    return f"{incarnation}-{rank}"


def end_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel end this process when its supervisor dies. Without a supervisor (`join`) it lives by itself."""
    leader = os.environ.pop(LEADER_VARIABLE, "")
    if leader:
        end_with(int(leader))
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if not parent:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != int(parent):  # it died before the line above
        sys.exit(EXIT_LINK_LOST)


def end_with(ancestor: int) -> None:
    """The kernel's tie reaches parents only; an ancestor is watched by a thread."""

    def watch() -> None:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll()
        os.kill(os.getpid(), signal.SIGKILL)

    try:
        pidfd = os.pidfd_open(ancestor)
    except ProcessLookupError:
        sys.exit(EXIT_LINK_LOST)
    threading.Thread(target=watch, name="leader", daemon=True).start()
