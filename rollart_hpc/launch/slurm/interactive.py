"""A run in an interactive allocation (`debug`). Starts its supervisor and makes sure that nothing is left.

The supervisor is a separate process, whose output goes to a file. It never requeues its job. When this process ends,
the supervisor saves a checkpoint and ends every step. That holds for `exit`, a closed terminal (SIGHUP), a revoked
allocation (salloc sends SIGTERM) and, through the kernel's parent-death signal, even for SIGKILL.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from rollart_hpc.config.resolved import read_resolved, read_site
from rollart_hpc.errors import UserError
from rollart_hpc.files import make_directory
from rollart_hpc.launch.command import environment, python
from rollart_hpc.launch.plan import Plan
from rollart_hpc.launch.plan_file import read_plan
from rollart_hpc.launch.slurm.allocation import Allocation, fits, fold, read_allocation
from rollart_hpc.launch.slurm.commands import Slurm
from rollart_hpc.launch.slurm.job import END_S
from rollart_hpc.launch.slurm.record import HeldBy
from rollart_hpc.launch.slurm.script import SUPERVISOR, allocation_options
from rollart_hpc.processes.lifetime import PARENT_VARIABLE
from rollart_hpc.rundir import RunDir

ENDING = (signal.SIGHUP, signal.SIGTERM)


def salloc_command(run: RunDir, plan: Plan) -> list[str]:
    """Requests the plan's nodes and runs `debug` again inside the allocation."""
    config, site = read_resolved(run.config), read_site(run.site)
    inside = [sys.executable, "-P", "-m", "rollart_hpc.cli", "debug", "--inside", str(run.path)]
    parts: list[str] = []
    for component in plan.home:
        parts += [":"] * bool(parts) + allocation_options(component, plan, config, site, run)
    return ["salloc", "--kill-command=TERM", *parts, *inside]  # without TERM the prompt would outlive its nodes


def supervisor_command(run: RunDir, held_by: HeldBy) -> list[str]:
    return python("-m", SUPERVISOR, "--run-dir", str(run.path), f"--held-by={held_by}")


@contextmanager
def supervised(command: list[str], log: Path, say: Callable[[str], None]) -> Iterator[None]:
    """The supervisor runs while this is open. A signal that would end this process becomes SystemExit."""
    make_directory(log.parent)
    for number in ENDING:
        signal.signal(number, _raise)
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment() | {PARENT_VARIABLE: str(os.getpid())},
            start_new_session=True,
        )
    try:
        yield
    finally:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        _end(process, say)


def _raise(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _end(process: subprocess.Popen[bytes], say: Callable[[str], None]) -> None:
    if process.poll() is None:
        with suppress(OSError):  # the terminal may be gone
            say(f"saving a checkpoint and ending every process: up to {END_S:.0f} s")
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def current_allocation(run: RunDir) -> tuple[Plan, Allocation]:
    plan = read_plan(run)
    return plan, (read_allocation if fits(plan, os.environ) else fold)(plan, Slurm(), os.environ)


def attach_command(name: str, plan: Plan, allocation: Allocation) -> list[str]:
    """A shell on the node of a process, which overlaps with the steps that run there."""
    known = {proc.name: proc for proc in plan.procs}
    if name not in known:
        raise UserError(f"no process of this run is called {name!r}", f"its processes: {', '.join(known)}")
    proc = known[name]
    component = plan.component_of(proc.node)
    het_group = [f"--het-group={component.index}"] if allocation.is_heterogeneous else []
    return [
        "srun", f"--jobid={allocation.leader}", *het_group, "--overlap", "--nodes=1", "--ntasks=1", "--cpus-per-task=1",
        "--mem=0", "--gres=none", f"--nodelist={allocation.hosts[proc.node]}", "--mpi=none", "--pty", "bash",
    ]  # fmt: skip
