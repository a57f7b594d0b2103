"""When a process ends: with which parent, and on which signals. Owns the environment variables that control this."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import threading

from rollart_hpc.vocabulary import ExitCode

PARENT_VARIABLE = "ROLLART_PARENT_PID"  # the process ends when this parent ends
LEADER_VARIABLE = "ROLLART_LEADER_PID"  # ... or when this ancestor ends

STAYS_VARIABLE = "ROLLART_STAYS"  # the process ignores SIGTERM and ends when the controller says so

# Jobs have no internet access: a request to a model hub or a usage server would only wait for its timeout.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}

_PR_SET_PDEATHSIG = 1


def stay_offline() -> None:
    """Call before importing anything heavy. Does not override variables that the user has set."""
    for name, value in OFFLINE.items():
        os.environ.setdefault(name, value)


def raise_file_limit() -> int:
    """Raise the limit of open files to the hard limit and return it. Each connection needs a file, and the soft limit
    of many systems is 1,024, less than the number of workers of a large run."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def stay_if_told() -> bool:
    """Slurm sends SIGTERM to all processes of a job at once, but they are still needed for a last checkpoint."""
    stays = bool(os.environ.pop(STAYS_VARIABLE, ""))
    if stays:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return stays


def seat_incarnation(incarnation: str, rank: int) -> str:
    """The incarnation of one rank of several processes that were started together."""
    return f"{incarnation}-{rank}"


def end_with_parent(by: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel end this process when its supervisor dies. Does nothing without a supervisor (`join`)."""
    leader = os.environ.pop(LEADER_VARIABLE, "")
    if leader:
        end_with(int(leader))
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if not parent:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if os.getppid() != int(parent):  # it died before the line above
        sys.exit(ExitCode.LINK_LOST)


def end_with(ancestor: int) -> None:
    """The kernel's death signal works for parents only; a thread watches an ancestor."""

    def watch() -> None:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll()
        os.kill(os.getpid(), signal.SIGKILL)

    try:
        pidfd = os.pidfd_open(ancestor)
    except ProcessLookupError:
        sys.exit(ExitCode.LINK_LOST)
    threading.Thread(target=watch, name="leader", daemon=True).start()
