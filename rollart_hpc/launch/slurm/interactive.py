"""A run in an allocation that somebody sits in front of. Owns what is started there and that nothing is left.

The supervisor is a process of its own, whose output goes to a file; it never requeues what it runs in. Whatever ends
this process ends it, and with it every step.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollart_hpc.config.resolved import read_resolved, read_site
from rollart_hpc.config.rundir import RunDir
from rollart_hpc.errors import UserError
from rollart_hpc.files import make_directory
from rollart_hpc.launch.command import environment
from rollart_hpc.launch.plan import Plan, make_plan
from rollart_hpc.launch.slurm.allocation import Allocation, fits, fold, read_allocation
from rollart_hpc.launch.slurm.commands import Slurm
from rollart_hpc.launch.slurm.script import allocation_options

END_S = 60.0  # for a checkpoint and the end of all steps


def salloc_command(run: RunDir, plan: Plan) -> list[str]:
    """What asks for the plan's nodes and comes back here with them."""
    config, site = read_resolved(run.config), read_site(run.site)
    inside = [sys.executable, "-P", "-m", "rollart_hpc.cli", "debug", "--inside", str(run.path)]
    parts: list[str] = []
    for component in plan.components:
        parts += [":"] * bool(parts) + allocation_options(component, plan, config, site, run)
    return ["salloc", *parts, *inside]


@contextmanager
def supervised(run: RunDir) -> Iterator[Path]:
    """All roles are started while this is open. Yields where the supervisor's words go."""
    make_directory(run.job_logs)
    log = run.job_logs / "debug.log"
    command = [
        sys.executable,
        "-P",
        "-m",
        "rollart_hpc.launch.slurm.job",
        "--run-dir",
        str(run.path),
        "--held-by=prompt",
    ]
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment(), start_new_session=True
        )
    try:
        yield log
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def current_allocation(run: RunDir) -> tuple[Plan, Allocation]:
    plan = make_plan(read_resolved(run.config), read_site(run.site))
    return plan, (read_allocation if fits(plan, os.environ) else fold)(plan, Slurm(), os.environ)


def attach_command(name: str, plan: Plan, allocation: Allocation) -> list[str]:
    """A shell on the node of a process, beside what runs there."""
    known = {proc.name: proc for proc in plan.procs}
    if name not in known:
        raise UserError(f"no process of this run is called {name!r}", f"there are: {', '.join(known)}")
    proc = known[name]
    component = plan.component_of(proc.node)
    het_group = [f"--het-group={component.index}"] if allocation.is_heterogeneous else []
    return [
        "srun", f"--jobid={allocation.leader}", *het_group, "--overlap", "--nodes=1", "--ntasks=1", "--cpus-per-task=1",
        "--mem=0", "--gres=none", f"--nodelist={allocation.hosts[proc.node]}", "--mpi=none", "--pty", "bash",
    ]  # fmt: skip
