"""Runs the site's epilogue on every node of a job, after the processes of the run have ended."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rollart_hpc.config.site import SiteConfig
from rollart_hpc.launch.plan import Plan
from rollart_hpc.launch.slurm.allocation import Allocation
from rollart_hpc.launch.slurm.commands import clean_environment

LIMIT_S = 20.0  # a job that was asked to end has no more time


def run_epilogues(
    run_dir: Path, plan: Plan, site: SiteConfig, allocation: Allocation, say: Callable[[str], None]
) -> None:
    """Run them on all nodes at once. One that fails or times out is only reported."""
    running = {
        name: subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=run_dir, env=clean_environment())
        for name, command in epilogue_commands(plan, site, allocation)
    }
    deadline_s = time.monotonic() + LIMIT_S
    for name, process in running.items():
        try:
            code = process.wait(max(0.1, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            say(f"the epilogue of class {name} took longer than {LIMIT_S:g} s")
        else:
            if code:
                say(f"the epilogue of class {name} failed with exit code {code}")


def epilogue_commands(plan: Plan, site: SiteConfig, allocation: Allocation) -> Iterator[tuple[str, list[str]]]:
    """(hardware class, srun command) pairs."""
    for component in plan.home:
        text = site.options(component.hardware).epilogue
        if not text:
            continue
        options = [
            "srun", f"--jobid={allocation.leader}", f"--nodes={len(component.nodes)}", "--ntasks-per-node=1",
            "--cpus-per-task=1", "--gres=none", "--overlap", "--mpi=none", "--export=ALL", "--input=none",
            "--job-name=epilogue",
        ]  # fmt: skip
        if component.per_node.memory_gb:
            options.append("--mem=0")  # all the memory of the job
        if allocation.is_heterogeneous:
            options.append(f"--het-group={component.index}")
        yield component.hardware, [*options, "/bin/bash", "-l", "-c", text]
