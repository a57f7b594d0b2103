"""A run in an interactive allocation (`debug`). Starts its supervisor there and makes sure that nothing is left.

The supervisor is a step on the first node of the allocation, never on the host of the prompt, which is often the login
node. Its output goes to a file, and it never requeues its job. When the prompt ends, the supervisor saves a checkpoint
and ends every step. That holds for `exit`, a closed terminal (SIGHUP), a revoked allocation (salloc sends SIGTERM) and
even for SIGKILL, because the step's standard input closes (`held`).
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from rollart_hpc.config.resolved import read_resolved, read_site
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import UserError
from rollart_hpc.files import make_directory
from rollart_hpc.launch.command import environment
from rollart_hpc.launch.ownership import ask_to_end, read_ownership
from rollart_hpc.launch.plan import Plan
from rollart_hpc.launch.plan_file import read_plan
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.allocation import Allocation, fits, fold, read_allocation
from rollart_hpc.launch.slurm.commands import Slurm, clean_environment
from rollart_hpc.launch.slurm.job import END_S
from rollart_hpc.launch.slurm.script import SUPERVISOR, allocation_options, setup_lines
from rollart_hpc.rundir import RunDir

HELD = "rollart_hpc.launch.slurm.held"
ENDING = (signal.SIGHUP, signal.SIGTERM)
KILL_S = 10.0
# How a process knows its allocation. srun sets some of these to what its step has.
_OF_THE_ALLOCATION = re.compile(
    r"SLURM_(JOB_ID|JOB_NODELIST|JOB_NUM_NODES)(_HET_GROUP_\d+)?|SLURM_HET_SIZE|SLURM_RESTART_COUNT"
)

Say = Callable[[str], None]


def in_one_allocation(config: RunConfig) -> RunConfig:
    """The same run without jobs of their own: an allocation with a prompt has all nodes."""
    still = {name: replace(pool, elastic=replace(pool.elastic, min=0, max=0)) for name, pool in config.pools.items()}
    return replace(config, launch=replace(config.launch, mode="het"), pools=still)


def salloc_command(run: RunDir, plan: Plan, inside: list[str]) -> list[str]:
    """Requests the plan's nodes and runs a command inside the allocation."""
    config, site = read_resolved(run.config), read_site(run.site)
    parts: list[str] = []
    for component in plan.home:
        parts += [":"] * bool(parts) + allocation_options(component, plan, config, site, run)
    return ["salloc", "--kill-command=TERM", *parts, *inside]  # without TERM the prompt would outlive its nodes


@dataclass(frozen=True)
class SlurmSession:
    run: RunDir
    plan: Plan
    allocation: Allocation

    @property
    def title(self) -> str:
        return f"job {self.allocation.leader}"

    @property
    def log(self) -> Path:
        return self.run.job_log("debug")

    def attach(self, name: str) -> list[str]:
        """A shell on the node of a process, which shares its node's CPUs, memory and GPUs with the steps there."""
        known = {proc.name: proc for proc in self.plan.procs}
        if name not in known:
            raise UserError(f"no process of this run is called {name!r}", f"its processes: {', '.join(known)}")
        node = known[name].node
        index = self.plan.component_of(node).index
        return [*_srun(self.allocation, self.allocation.hosts[node], index), "--pty", "bash"]


def current_session(run: RunDir) -> SlurmSession:
    plan = read_plan(run)
    read = read_allocation if fits(plan, os.environ) else fold
    return SlurmSession(run, plan, read(plan, Slurm(), os.environ))


def supervisor_command(session: SlurmSession, held_by: record.HeldBy, variables: Mapping[str, str]) -> list[str]:
    """On the first node of the first component, with its prologue and interpreter, as in a batch script."""
    site, first = read_site(session.run.site), session.plan.components[0]
    options = site.options(first.hardware)
    python = [options.python or sys.executable, "-P", "-m"]
    known = [f"{name}={value}" for name, value in variables.items() if _OF_THE_ALLOCATION.fullmatch(name)]
    supervisor = [*python, SUPERVISOR, "--run-dir", str(session.run.path), f"--held-by={held_by}"]
    return [
        *_srun(session.allocation, session.allocation.hosts[first.nodes[0]], 0), "--gres=none", "--export=ALL",
        "--unbuffered", f"--chdir={session.run.path}", "--job-name=supervisor",
        *in_shell(site, first.hardware, ["env", *known, *python, HELD, *supervisor]),
    ]  # fmt: skip


def _srun(allocation: Allocation, host: str, component: int) -> list[str]:
    return srun_beside(allocation.leader, host, component if allocation.is_heterogeneous else None)


def srun_beside(job: int, host: str, component: int | None) -> list[str]:
    """One process that shares everything on its node with the steps that run there. None: not a heterogeneous job."""
    het_group = [] if component is None else [f"--het-group={component}"]
    return [
        "srun", f"--jobid={job}", *het_group, "--overlap", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mem=0",
        f"--nodelist={host}", "--mpi=none",
    ]  # fmt: skip


def in_shell(site: SiteConfig, hardware: str, command: list[str]) -> list[str]:
    """With the site's modules and variables, as in a batch script."""
    lines = ["unset CUDA_VISIBLE_DEVICES", *setup_lines(site, site.options(hardware)), f"exec {shlex.join(command)}"]
    return ["/bin/bash", "-l", "-c", "\n".join(lines)]


@contextmanager
def supervised(command: list[str], log: Path, say: Say) -> Iterator[None]:
    """The supervisor runs while this is open. A signal that would end this process becomes SystemExit."""
    make_directory(log.parent)
    for number in ENDING:
        signal.signal(number, _raise)
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,  # closed by the kernel if this process is killed
            stdout=output,
            stderr=output,
            env=clean_environment(environment()),
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


def _end(process: subprocess.Popen[bytes], say: Say) -> None:
    assert process.stdin is not None
    if process.poll() is None:
        with suppress(OSError):  # the terminal may be gone
            say(f"saving a checkpoint and ending every process: up to {END_S:.0f} s")
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.terminate()  # srun then kills the step
        with suppress(subprocess.TimeoutExpired):
            process.wait(KILL_S)
        process.kill()
        process.wait()


def ask_supervisor(run: RunDir, began: record.Began, slurm: Slurm, say: Say) -> None:
    """Ask the supervisor of a run in `debug` to save a checkpoint and end, on whichever node it runs."""
    owner = read_ownership(run)
    if owner is None:
        return
    say(f"asked the supervisor (pid {owner.pid} on {owner.host}) to save a checkpoint and end: up to {END_S:.0f} s")
    try:
        ask_to_end(run)
    except UserError:  # not on this host
        first = began.parts[0]
        het_group = ["--het-group=0"] if len({part.job for part in began.parts}) > 1 else []
        slurm.ask(
            "srun", f"--jobid={began.job}", *het_group, "--overlap", "--nodes=1", "--ntasks=1", "--mem=0",
            "--gres=none", f"--nodelist={first.hosts[0]}", "--mpi=none", "kill", "-TERM", str(owner.pid),
        )  # fmt: skip
