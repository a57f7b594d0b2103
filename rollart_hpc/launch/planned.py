"""What a plan is: processes, and the components of a job that hold them. Plain data, stored in plan.json.

`launch.plan` makes it; import these types from there.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rollart_hpc.launch.packing import Needs
from rollart_hpc.types import Role

CONTROLLER = "controller"


@dataclass(frozen=True)
class Proc:
    """One process of the run."""

    name: str  # unique within the run
    role: Role
    hardware: str  # class of the site; on one machine its node
    node: str
    pool: str = ""  # of an engine
    rank: int = 0
    ranks: int = 1
    needs: Needs = Needs()
    gpus: tuple[int, ...] = ()  # the GPUs it sees, as indices into the run's share of its node
    local_rank: int = 0  # trainer: number among the ranks of its node, and the one of `gpus` it computes on


@dataclass(frozen=True)
class Component:
    """The part of the run's job in one partition (the first one runs the batch script), or a job of its own."""

    index: int  # Slurm's --het-group
    hardware: str  # class of the site
    partition: str
    nodes: tuple[str, ...]  # names in the plan
    per_node: Needs  # requested of every node
    procs: tuple[Proc, ...]
    cost_per_hour: float  # of all its nodes
    max_gpus: int = 0  # that the class allows a job; 0 = no limit
    is_whole: bool = False  # whole nodes are requested
    job: str = ""  # name of the job of its own, unique in the run; empty: part of the run's job
    minutes: int = 0  # time limit of that job; 0: the plan's
    pool: str = ""  # the job exists only while this pool has work for it; empty: always

    @property
    def num_gpus(self) -> int:
        return len(self.nodes) * self.per_node.gpus

    @property
    def num_cpus(self) -> int:
        return len(self.nodes) * self.per_node.cpus


@dataclass(frozen=True)
class PlannedPool:
    name: str
    profile: str  # compute, bandwidth or any
    tasks: tuple[str, ...]  # that prefer it


@dataclass(frozen=True)
class Plan:
    procs: tuple[Proc, ...]
    components: tuple[Component, ...] = ()  # none on one machine
    time_minutes: int = 0  # one limit for all components of the run's job; 0 on one machine
    pools: tuple[PlannedPool, ...] = ()
    warnings: tuple[str, ...] = ()  # sizes below what the model needs

    def __getitem__(self, name: str) -> Proc:
        return next(proc for proc in self.procs if proc.name == name)

    @property
    def controller(self) -> Proc:
        return self[CONTROLLER]

    @property
    def workers(self) -> tuple[Proc, ...]:
        return tuple(proc for proc in self.procs if proc.role != "controller")

    def of(self, role: Role) -> tuple[Proc, ...]:
        return tuple(proc for proc in self.procs if proc.role == role)

    def on(self, node: str) -> tuple[Proc, ...]:
        return tuple(proc for proc in self.procs if proc.node == node)

    def component_of(self, node: str) -> Component:
        return next(component for component in self.components if node in component.nodes)

    def classes_of(self, pool: str) -> dict[str, int]:
        """Hardware class -> engines of the pool there."""
        return dict(Counter(proc.hardware for proc in self.of("engine") if proc.pool == pool))

    def partitions_of(self, pool: str) -> str:
        """Partitions in which the pool has engines, separated by commas."""
        classes = self.classes_of(pool)
        return ", ".join(dict.fromkeys(c.partition for c in self.components if c.hardware in classes))

    @property
    def home(self) -> tuple[Component, ...]:
        """The components of the run's own job, which contains the supervisor."""
        return tuple(component for component in self.components if not component.job)

    @property
    def satellites(self) -> tuple[Component, ...]:
        """Those that are jobs of their own."""
        return tuple(component for component in self.components if component.job)

    def hours(self, component: Component) -> float:
        return (component.minutes or self.time_minutes) / 60

    @property
    def gpu_hours(self) -> float:
        """Upper bound: if every job uses its whole time limit."""
        return sum(component.num_gpus * self.hours(component) for component in self.components)

    @property
    def cost(self) -> float:
        """Upper bound, in the site's unit. A class without a cost counts as 0."""
        return sum(component.cost_per_hour * self.hours(component) for component in self.components)
