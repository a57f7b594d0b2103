"""A job step: an srun that represents its process. Owns its exit code, and the warm steps.

A warm step runs `roles.warm`: it was started early, has imported what its role needs, and becomes the role when it
gets the role's arguments.
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

    slurm_name = ""  # unique among all steps
    abandoned: Callable[[], None] | None = None  # cancels the step; set by the place

    def reap(self, timeout_s: float = 30.0) -> int:
        """The exit code of the process. srun returns 128 + N for one that signal N killed."""
        code = super().reap(timeout_s)
        if code < 0 and self.abandoned is not None:  # srun was killed, but its step is still running
            self.abandoned()
        return 128 - code if 128 < code < 192 else code


class WarmSteps:
    """Warm steps by the name of the process they will become."""

    def __init__(self) -> None:
        self._steps: dict[str, SrunStep] = {}

    def add(self, step: SrunStep) -> None:
        self._steps[step.name] = step

    def take(self, order: Order, command: list[str]) -> SrunStep | None:
        """Turn a warm step into the process of this order; None if there is none, or it has ended. Renames its log."""
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
        """Unused warm steps then end by themselves."""
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
