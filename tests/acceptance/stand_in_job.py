"""The supervisor of a job whose workers are stand-ins; controller and agents are real. Arguments as of the real one."""

from __future__ import annotations

import sys
from typing import Any

from rollart_hpc.launch import crew
from rollart_hpc.launch.process import Order
from rollart_hpc.launch.slurm import agent_command, job
from rollart_hpc.rundir import RunDir

real_command = crew.role_command


def stand_in(order: Order, run: RunDir, **rest: Any) -> list[str]:
    command = real_command(order, run, **rest)
    if order.proc.role == "controller":
        return command
    start = command.index("-m")
    return [*command[:start], "-m", "tests.acceptance.stand_in", order.proc.role, *command[start + 2 :]]


if __name__ == "__main__":
    crew.role_command = stand_in  # type: ignore[assignment]
    agent_command.preloaded_roles = lambda config: frozenset()  # type: ignore[assignment]
    sys.exit(job.main())
