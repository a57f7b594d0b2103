"""The time that a job has left, according to Slurm. Owns the query and its back-off; decides nothing.

It asks for the time left, not for the end time, so the clocks of two machines are never compared. A thread asks, so
that a slurmctld that is down blocks nothing. Until it answers, the last known time is counted down.
"""

from __future__ import annotations

import math
import re
import threading
import time

from rollart_hpc.launch.slurm.commands import Slurm, SlurmError

ASK_EVERY_S = 60.0  # an administrator may change a job's limit
LONGEST_S = 600.0
_LEFT = re.compile(r"(?:(?P<days>\d+)-)?(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+)")


class Budget:
    """The time left counts to `margin_s` before the job's time limit."""

    def __init__(self, slurm: Slurm, job_id: int, margin_s: float) -> None:
        self._slurm, self._job_id, self._margin_s = slurm, job_id, margin_s
        self._end_s = math.inf  # on the local monotonic clock
        threading.Thread(target=self._ask_for_ever, name="budget", daemon=True).start()

    def left_s(self) -> float:
        return self._end_s - self._margin_s - time.monotonic()

    def grace_s(self) -> float:
        """What is left of the margin, at most the margin: Slurm may signal before a shortened limit is known here."""
        return max(0.0, self._margin_s + min(0.0, self.left_s()))

    def _ask_for_ever(self) -> None:
        wait_s = ASK_EVERY_S
        while True:
            try:
                rows = self._slurm.table("squeue", {"left": "%L"}, "--jobs", str(self._job_id))
            except SlurmError:
                wait_s = min(LONGEST_S, 2 * wait_s)
            else:
                wait_s = ASK_EVERY_S
                if rows:
                    self._end_s = time.monotonic() + min(seconds(row["left"]) for row in rows)
            time.sleep(wait_s)


def seconds(left: str) -> float:
    """Parses Slurm's time left. A word instead of a time (UNLIMITED, NOT_SET) means no limit.

    >>> seconds("1-02:03:04"), seconds("5:00"), seconds("UNLIMITED")
    (93784.0, 300.0, inf)
    """
    match = _LEFT.fullmatch(left)
    if match is None:
        return math.inf
    days, hours, minutes, secs = (float(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + secs
