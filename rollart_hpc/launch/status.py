"""The status of a run: what its controller wrote last, corrected by its supervisor and by Slurm. Only reads.

The correction is needed because a run whose processes were all killed leaves a status that says "running".
"""

from __future__ import annotations

import msgspec

from rollart_hpc.config.resolved import read_resolved, read_site
from rollart_hpc.errors import UserError
from rollart_hpc.flow.rules import rules_of
from rollart_hpc.launch.ownership import Ownership, read_ownership, supervisor_pid
from rollart_hpc.launch.plan_file import read_plan
from rollart_hpc.launch.slurm.queue import JobRow, Queue
from rollart_hpc.launch.slurm.state import job_state
from rollart_hpc.launch.slurm.usage import usage
from rollart_hpc.observe.status import (
    GpuHours,
    StalenessStatus,
    Status,
    TaskStatus,
    WeightsStatus,
    WorkerStatus,
    read_status,
)
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState


class RunStatus(Status):
    """The output of `status --json`."""

    run_dir: str = ""
    jobs: list[JobRow] = msgspec.field(default_factory=list)  # on a cluster: components of the newest job
    gpu_hours: dict[str, GpuHours] = msgspec.field(default_factory=dict)  # on a cluster, after the end: by class


def run_status(run: RunDir, queue: Queue | None = None) -> RunStatus:
    """`queue`: pass one for a run on a cluster that is polled."""
    written = read_status(run.status)
    current = RunStatus(**msgspec.structs.asdict(written or _before_the_first(run)), run_dir=str(run.path))
    owner = read_ownership(run)
    (_see_cluster if is_on_cluster(run) else _see_supervisor)(run, current, owner, queue)
    current.attempt = max(current.attempt, run.last_attempt())
    if current.state.is_over:
        current.validating = None
        for workers in current.workers.values():
            workers.alive = 0
    return current


def is_on_cluster(run: RunDir) -> bool:
    """Decided by the run's site, because there may be no job yet, or no record of one."""
    return run.site.exists() and read_site(run.site).launcher == "slurm"


def gpu_hours(run: RunDir, current: Status) -> dict[str, GpuHours]:
    return usage(run, read_plan(run), current.time_s)


def _see_supervisor(run: RunDir, current: RunStatus, owner: Ownership | None, queue: Queue | None) -> None:
    """For a run on this machine."""
    current.state = _state_here(run, current, owner)
    current.reason = current.reason or (owner.reason if owner is not None else "")


def _state_here(run: RunDir, current: Status, owner: Ownership | None) -> RunState:
    if owner is None:
        return RunState.PREPARING
    if owner.state is not RunState.RUNNING:
        return owner.state
    return _state_of_controller(run, current, owner) if _is_supervised(run) else RunState.KILLED


def _see_cluster(run: RunDir, current: RunStatus, owner: Ownership | None, queue: Queue | None) -> None:
    told, (state, reason, rows) = current.state, job_state(run, queue or Queue(run))
    current.state = state or _state_of_controller(run, current, owner)
    current.reason = (current.reason if told is current.state else "") or reason
    current.jobs = rows


def _state_of_controller(run: RunDir, current: Status, owner: Ownership | None) -> RunState:
    """What the controller wrote, if it is the current one."""
    oldest = min((proc.attempt for proc in owner.procs.values()), default=0) if owner is not None else 0
    if not oldest:
        return RunState.STARTING if run.last_attempt() else RunState.PREPARING
    is_of_now = current.attempt >= oldest and current.state is not RunState.UNKNOWN
    return current.state if is_of_now else RunState.STARTING


def _is_supervised(run: RunDir) -> bool:
    try:
        return supervisor_pid(run) is not None
    except UserError:
        return True  # the supervisor is on another host, so it can't be checked from here


def _before_the_first(run: RunDir) -> Status:
    """Status of a run whose controller has not written one yet, from the configuration."""
    if not run.config.exists():
        return Status()  # it was only just created
    config = read_resolved(run.config)
    return Status(
        name=config.name,
        mode=config.mode,
        steps=config.steps,
        tasks={name: TaskStatus() for name in config.tasks},
        staleness=StalenessStatus(bound=rules_of(config).alpha),
        workers={proc.role: WorkerStatus() for proc in read_plan(run).workers},
        weights=WeightsStatus(transport=config.weights.transport),
    )
