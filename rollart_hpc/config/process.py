"""What the launcher and a role agree on about a process: its parent, its exit codes, the form of its log lines."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys

PARENT_VARIABLE = "ROLLART_PARENT_PID"  # the process ends with this parent

STAYS_VARIABLE = "ROLLART_STAYS"  # SIGTERM is for the supervisor: the process ends when the controller says so

EXIT_LINK_LOST = 4  # the controller refused the process or fell silent: starting it again may help
EXIT_DRAINED = 5  # the run was asked to end before its last step; it can be resumed

LOG_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s {name}: %(message)s"
LOG_TIME_FORMAT = "%m-%d %H:%M:%S"
LOG_LINE = re.compile(r"(?P<time>\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}) (?P<level>[A-Z]+) (?P<name>[^ ]+): (?P<text>.*)")

# Jobs have no way out: whatever asks a model hub or a usage server would wait for its time-out.
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}

_PR_SET_PDEATHSIG = 1


def stay_offline() -> None:
    """Before anything heavy is imported. What the user set stands."""
    for name, value in OFFLINE.items():
        os.environ.setdefault(name, value)


def stay_if_told() -> bool:
    """Slurm tells every process of a job at once that its time is up, but a checkpoint needs all of them once more."""
    stays = bool(os.environ.pop(STAYS_VARIABLE, ""))
    if stays:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return stays


def end_with_parent() -> None:
    """Have the kernel end this process when its supervisor dies. Without a supervisor (`join`) it lives by itself."""
    parent = os.environ.pop(PARENT_VARIABLE, "")
    if not parent:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # it died before the line above
        sys.exit(EXIT_LINK_LOST)
