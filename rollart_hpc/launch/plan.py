"""Which processes a run consists of and where they belong. Owns names and placement; starts nothing.

    node cpu        controller, env-I, reward-I
    node compute    trainer-R, engine-compute-I, relay-compute
    node bandwidth  engine-bandwidth-I, relay-bandwidth

The plan is the same whoever carries it out. On one machine its nodes are emulated: they share the
host, but each has a relay and a weight store of its own, as real nodes do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.hardware import COMPUTE, CPU
from rollart_hpc.types import Role

CONTROLLER = "controller"


@dataclass(frozen=True)
class Proc:
    """One process of the run."""

    name: str  # unique in the run
    role: Role
    hardware: str  # hardware class
    node: str
    pool: str = ""  # engines: their hardware class
    rank: int = 0
    ranks: int = 1


@dataclass(frozen=True)
class Plan:
    procs: tuple[Proc, ...]

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


def make_plan(config: RunConfig) -> Plan:
    workers = (*_on_cpu(config), *_engines(config), *_trainers(config))
    relays = _relays(workers) if config.weights.transport == "staged" else ()
    return Plan((Proc(CONTROLLER, "controller", CPU, CPU), *workers, *relays))


def _on_cpu(config: RunConfig) -> Iterator[Proc]:
    for i in range(config.env.workers):
        yield Proc(f"env-{i}", "env", CPU, CPU)
    for i in range(config.reward.workers):
        yield Proc(f"reward-{i}", "reward", CPU, CPU)


def _engines(config: RunConfig) -> Iterator[Proc]:
    for pool, settings in config.pools.items():
        for i in range(settings.engines):
            yield Proc(f"engine-{pool}-{i}", "engine", pool, pool, pool=pool)


def _trainers(config: RunConfig) -> Iterator[Proc]:
    ranks = config.trainer.ranks
    for rank in range(ranks):
        yield Proc(f"trainer-{rank}", "trainer", COMPUTE, COMPUTE, rank=rank, ranks=ranks)


def _relays(workers: tuple[Proc, ...]) -> tuple[Proc, ...]:
    """One for every node that makes or uses weights."""
    nodes = dict.fromkeys((p.node, p.hardware) for p in workers if p.role in ("trainer", "engine"))
    return tuple(Proc(f"relay-{node}", "relay", hardware, node) for node, hardware in nodes)
