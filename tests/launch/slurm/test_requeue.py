"""How long a job that Slurm ends has to leave, with a Slurm that says what it is told."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rollart_hpc.launch.slurm.allocation import Allocation
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError
from rollart_hpc.launch.slurm.requeue import time_to_leave_s

ALLOCATION = Allocation(12, (12, 13), {}, restart=1)


class Told(Slurm):
    def __init__(self, states: tuple[str, ...], restarts: int, kill_wait: str) -> None:
        super().__init__()
        self.parts = [{"JobState": state, "Restarts": str(restarts)} for state in states]
        self.kill_wait = kill_wait

    def records(self, *_: str) -> list[dict[str, str]]:
        if not self.parts:
            raise SlurmError("no answer")
        return self.parts

    def settings(self) -> dict[str, Any]:
        return {"KillWait": self.kill_wait}


@pytest.mark.parametrize(
    ("states", "restarts", "kill_wait", "leave_s"),
    [
        (("COMPLETING", "CANCELLED"), 1, "30 sec", 20.0),
        (("COMPLETING", "COMPLETING"), 1, "5 sec", 2.5),
        (("RUNNING", "RUNNING"), 1, "30 sec", math.inf),  # only warned
        (("COMPLETING", "COMPLETING"), 2, "30 sec", math.inf),  # preempted: it will be started again
        ((), 1, "30 sec", math.inf),
    ],
)
def test_only_a_cancelled_job_has_to_leave_before_it_is_killed(
    states: tuple[str, ...], restarts: int, kill_wait: str, leave_s: float
) -> None:
    assert time_to_leave_s(Told(states, restarts, kill_wait), ALLOCATION) == leave_s
