"""The status of a run: what its controller wrote last, corrected by what its launcher sees. Only reads.

The correction is needed because a run whose processes were all killed leaves a status that says "running".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.flow.rules import rules_of
from rollart_hpc.launch.changes import ConfigChange, read_changes
from rollart_hpc.launch.ownership import Ownership, read_ownership
from rollart_hpc.launch.plan_file import read_plan
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

_WITHOUT_PROCESSES = (RunState.PENDING, RunState.PREPARING, RunState.REQUEUED)


class JobRow(msgspec.Struct, frozen=True):
    """A component of the newest job, or an ordinary job, in the words of its cluster."""

    job: str  # 12, or 12+1
    partition: str
    state: str
    reason: str  # as text; empty unless it is pending
    start: str  # when it started, or will start at the latest; empty if unknown
    left: str
    nodes: str
    unit: str = ""  # of a job that holds only nodes for the run; empty: the run's own job


class Used(msgspec.Struct, frozen=True):
    """What the jobs of a run used on one hardware class, according to the cluster's accounting."""

    elapsed_s: float = 0.0  # summed over jobs and restarts
    cpu_s: float = 0.0
    allocated_cpu_s: float = 0.0
    max_rss_gb: float = 0.0  # of the largest process; 0 = not recorded
    memory_gb: float = 0.0  # requested per node


class RunStatus(Status):
    """The output of `status --json`."""

    run_dir: str = ""
    jobs: list[JobRow] = msgspec.field(default_factory=list)  # on a cluster: components of the newest job
    gpu_hours: dict[str, GpuHours] = msgspec.field(default_factory=dict)  # on a cluster, after the end: by class
    cost: float = 0.0  # of those GPU-hours, in the unit of the site file
    used: dict[str, Used] = msgspec.field(default_factory=dict)  # by class, where accounting exists
    accounting: str = ""  # why `used` is empty
    changes: list[ConfigChange] = msgspec.field(default_factory=list)  # by `resume RUN_DIR key=value`


class View(NamedTuple):
    """A run as its launcher sees it."""

    state: RunState | None  # None: as the controller says
    reason: str = ""
    jobs: Sequence[JobRow] = ()


def compose(run: RunDir, view: View) -> RunStatus:
    written = read_status(run.status)
    current = RunStatus(**msgspec.structs.asdict(written or _before_the_first(run)), run_dir=str(run.path))
    told = current.state
    current.state = view.state or _state_of_controller(run, current, read_ownership(run))
    current.reason = (current.reason if told is current.state else "") or view.reason
    current.jobs = list(view.jobs)
    current.attempt = max(current.attempt, run.last_attempt())
    current.changes = read_changes(run)
    if current.changes:
        current.steps = read_resolved(run.config).steps  # the controller may not have read the new one yet
    if current.state.is_over or current.state in _WITHOUT_PROCESSES:
        current.validating = None
        for workers in current.workers.values():
            workers.alive = 0
    return current


def _state_of_controller(run: RunDir, current: Status, owner: Ownership | None) -> RunState:
    """What the controller wrote, if it is the current one."""
    oldest = min((proc.attempt for proc in owner.procs.values()), default=0) if owner is not None else 0
    if not oldest:
        return RunState.STARTING if run.last_attempt() else RunState.PREPARING
    is_of_now = current.attempt >= oldest and current.state is not RunState.UNKNOWN
    return current.state if is_of_now else RunState.STARTING


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
