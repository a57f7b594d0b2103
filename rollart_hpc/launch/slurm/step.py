"""A step of a job: an srun that stands for its process. Owns its exit code, and the steps that wait for their orders.

A waiting step runs `roles.warm`: it was started ahead of time, has imported what its role needs, and becomes the role
when it is told the role's arguments.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from subprocess import Popen

from rollart_hpc.files import disk_errors
from rollart_hpc.launch.process import Child, Order


class SrunStep(Child):
    """An srun."""

    slurm_name = ""  # no other step has it
    abandoned: Callable[[], None] | None = None  # cancels the step; set by the place

    def reap(self, timeout_s: float = 30.0) -> int:
        """The exit code of the process itself: srun returns 128 + N for one that signal N ended."""
        code = super().reap(timeout_s)
        if code < 0 and self.abandoned is not None:  # srun was killed, its step lives on
            self.abandoned()
        return 128 - code if 128 < code < 192 else code


class WarmSteps:
    """By the name of the process they will be."""

    def __init__(self) -> None:
        self._steps: dict[str, SrunStep] = {}

    def add(self, step: SrunStep) -> None:
        self._steps[step.name] = step

    def take(self, order: Order, command: list[str]) -> SrunStep | None:
        """The step as the process of this order; None if there is none, or it has ended. Its log moves with it."""
        step = self._steps.pop(order.proc.name, None)
        if step is None:
            return None
        arguments = command[command.index("-m") + 2 :]
        if step.has_ended() or not _tell(step, json.dumps(arguments)):
            step.reap()
            return None
        with disk_errors(order.log):
            os.rename(step.log, order.log)
        step.order = order
        return step

    def close(self) -> None:
        """Those that were not needed end by themselves."""
        for step in self._steps.values():
            _tell(step, "")
        self._steps.clear()


def _tell(step: SrunStep, line: str) -> bool:
    assert isinstance(step.popen, Popen) and step.popen.stdin is not None
    try:
        with step.popen.stdin as pipe:
            pipe.write(f"{line}\n".encode() if line else b"")
    except BrokenPipeError:
        return False
    return True
