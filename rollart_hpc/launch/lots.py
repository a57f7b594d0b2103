"""Which processes share a job, and which jobs a run has. Owns that decision; packs nothing onto nodes.

launch.mode: het    one job for all, with a component per class
launch.mode: jobs   controller, env and reward workers: the run's job, with a component per class
                    trainer: one job; engines: a job per node or per class (launch.engine_jobs)
elastic engines     a job each, in both modes
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.launch.packing import Needs
from rollart_hpc.launch.planned import Component, Proc

TRAINER = "trainer"
ENGINES = "engines-{hardware}"


@dataclass(frozen=True)
class Lot:
    """Processes of one class in one job."""

    hardware: str  # class of the site
    procs: tuple[Proc, ...]
    job: str = ""  # as in `Component`
    pool: str = ""
    is_split: bool = False  # each of its nodes is a job


def lots_of(config: RunConfig, wanted: tuple[Proc, ...], elastic: tuple[Proc, ...]) -> list[Lot]:
    """The run's own job comes first. `wanted`: class by class, the controller first. `elastic`: engines on demand."""
    if config.launch.mode == "jobs":
        at_home = tuple(proc for proc in wanted if proc.role not in ("trainer", "engine"))
        lots = [*_by_class(at_home)]
        lots += [replace(lot, job=TRAINER) for lot in _by_class(_of("trainer", wanted))]
        is_split = config.launch.engine_jobs == "node"
        for lot in _by_class(_of("engine", wanted)):
            lots.append(replace(lot, job=ENGINES.format(hardware=lot.hardware), is_split=is_split))
    else:
        lots = [*_by_class(wanted)]
    return lots + [Lot(proc.hardware, (proc,), proc.name, proc.pool) for proc in elastic]


def _of(role: str, procs: tuple[Proc, ...]) -> tuple[Proc, ...]:
    return tuple(proc for proc in procs if proc.role == role)


def _by_class(procs: tuple[Proc, ...]) -> Iterator[Lot]:
    for hardware in dict.fromkeys(proc.hardware for proc in procs):
        yield Lot(hardware, tuple(proc for proc in procs if proc.hardware == hardware))


def separate(component: Component) -> list[Component]:
    """A job per node, named like the node, which asks for what the processes of that node need."""
    parts = []
    for number, node in enumerate(component.nodes):
        procs = tuple(proc for proc in component.procs if proc.node == node)
        total = sum((proc.needs for proc in procs), Needs())
        asked = replace(total, memory_gb=total.memory_gb if component.per_node.memory_gb else 0.0)
        asked = component.per_node if component.is_whole else asked
        cost = component.cost_per_hour / len(component.nodes)
        if component.per_node.gpus:
            cost *= asked.gpus / component.per_node.gpus
        one = replace(component, index=component.index + number, nodes=(node,), per_node=asked, procs=procs)
        parts.append(replace(one, cost_per_hour=cost, job=node))
    return parts
