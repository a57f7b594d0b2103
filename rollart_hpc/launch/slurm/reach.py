"""How a command gets to a host of a run: as a job step beside the run's processes. Starts nothing."""

from __future__ import annotations

from rollart_hpc.config.resolved import read_site
from rollart_hpc.errors import UserError, command_line
from rollart_hpc.launch.plan_file import read_plan
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.commands import Slurm
from rollart_hpc.launch.slurm.interactive import in_shell, srun_beside
from rollart_hpc.launch.slurm.queue import RUNNING, Queue
from rollart_hpc.rundir import RunDir


def reach(run: RunDir, host: str, command: list[str]) -> list[str]:
    began = next((line for line in reversed(record.read(run)) if isinstance(line, record.Began)), None)
    if began is None:
        raise UserError(f"{run.path} is not running", f"see how it is: {command_line('status', run.path)}")
    host = host or began.parts[0].hosts[0]
    is_heterogeneous = len({part.job for part in began.parts}) > 1
    for index, part in enumerate(began.parts):
        if host in part.hosts:
            step = srun_beside(began.job, host, index if is_heterogeneous else None)
            return [*step, *_OPTIONS, *in_shell(read_site(run.site), part.hardware, command)]
    job, hardware = _satellite(run, host)
    return [*srun_beside(job, host, None), *_OPTIONS, *in_shell(read_site(run.site), hardware, command)]


_OPTIONS = ("--gres=none", "--export=ALL", "--unbuffered", "--job-name=chaos", "--quiet")


def _satellite(run: RunDir, host: str) -> tuple[int, str]:
    """The job of the run that holds this host, and the class of its nodes."""
    slurm, plan = Slurm(), read_plan(run)
    held = (row for row in Queue(run).rows() or () if row.unit and row.state == RUNNING and row.nodes)
    for row in held:
        if host in slurm.run("scontrol", "show", "hostnames", row.nodes).split():
            component = next(part for part in plan.components if part.job == row.unit)
            return int(row.job), component.hardware
    raise UserError(f"no job of {run.path} has {host}", f"see its jobs: {command_line('status', run.path)}")
