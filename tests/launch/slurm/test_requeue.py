"""How long a job that Slurm ends has to leave, with a Slurm that says what it is told."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rollart_hpc.launch.slurm.allocation import Allocation
from rollart_hpc.launch.slurm.commands import Answer, Slurm, SlurmError
from rollart_hpc.launch.slurm.requeue import requeue_the_rest, time_to_leave_s

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


class Late(Slurm):
    """Requeues the first component only after it has been asked several times, and the second one only if told to."""

    def __init__(self, num_late: int) -> None:
        super().__init__()
        self.num_asked, self.num_late = 0, num_late
        self.told: list[tuple[str, ...]] = []

    def records(self, *_: str) -> list[dict[str, str]]:
        self.num_asked += 1
        first = ("PENDING", "2") if self.num_asked > self.num_late else ("RUNNING", "1")
        second = ("PENDING", "2") if self.told else ("RUNNING", "1")
        return [{"JobState": state, "Restarts": restarts} for state, restarts in (first, second)]

    def ask(self, *command: str, **_: Any) -> Answer:
        self.told.append(command)
        return Answer(0, "", "")


@pytest.mark.parametrize("num_late", [1, 4])
def test_components_that_slurm_left_running_are_requeued_even_if_it_is_late(
    num_late: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    slurm = Late(num_late)
    requeue_the_rest(slurm, ALLOCATION)
    assert slurm.told == [("scontrol", "requeue", "12")]


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
