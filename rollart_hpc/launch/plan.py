"""The processes of a run and where they run. Owns their names and placement; starts nothing.

    need       served by           processes
    cpu        site.serves.cpu     controller, env-I, reward-I
    compute                        trainer-R, engine-compute-I
    bandwidth                      engine-bandwidth-I
    each node that makes or uses weights also has a relay: relay-NODE

On one machine the nodes of the plan are the needs themselves: they share the host, but each has its own relay and
weight store, like a real node. On a cluster a node is CLASS-I, e.g. `h800-0`: the I-th node of that hardware class.
Processes that share a job are packed together (`launch.lots`): all of a class, or with `launch.mode: jobs` the trainer
and the engines apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import HardwareClass, SiteConfig
from rollart_hpc.errors import UserError
from rollart_hpc.hardware import COMPUTE, CPU
from rollart_hpc.launch.devices import assign_devices
from rollart_hpc.launch.lots import Lot, lots_of, separate
from rollart_hpc.launch.packing import Needs, Pack, pack
from rollart_hpc.launch.planned import CONTROLLER, Component, Plan, Proc

__all__ = ["CONTROLLER", "Component", "Plan", "Proc", "engine_needs", "make_plan", "relay_needs"]
SUPERVISOR_NEEDS = Needs(cpus=1, memory_gb=1.0)  # the batch script, on the first node of the first component
NODE = "{hardware}-{index}"
WORK_S = 120  # minimum time of a job before its last checkpoint; Slurm's signal may come a minute early


def make_plan(config: RunConfig, site: SiteConfig | None = None) -> Plan:
    if site is None or site.launcher == "local":
        return _local_plan(config)
    _need_submission(config, site)
    wanted = (_controller(config), *_trainers(config, site), *_engines(config, site), *_on_cpu(config))
    lots = lots_of(config, site, wanted, tuple(_elastic(config, site)))
    minutes = _time_minutes(config, site, list(dict.fromkeys(lot.hardware for lot in lots if not lot.job)))
    components: list[Component] = []
    for lot in lots:
        num_before = sum(len(known.nodes) for known in components if known.hardware == lot.hardware)
        component = _component(len(components), lot, num_before, config, site)
        if lot.job:
            component = replace(component, minutes=_time_minutes(config, site, [lot.hardware], minutes))
        components += separate(component) if lot.is_split else [component]
    procs = tuple(proc for component in components for proc in component.procs)
    return Plan(procs, tuple(components), minutes)


def _need_submission(config: RunConfig, site: SiteConfig) -> None:
    """Some jobs are submitted by the run's own job."""
    if site.submit_from_compute:
        return
    fixes = {
        "elastic workers": ("set reward.elastic.max_workers=0 and reward.workers=N", config.reward.elastic.max_workers),
        "elastic engines": (
            "set pools.NAME.elastic.max=0 and pools.NAME.engines=N",
            any(pool.elastic.max for pool in config.pools.values()),
        ),
        "jobs of trainer and engines": ("set launch.mode=het", config.launch.mode == "jobs"),
    }
    for what, (fix, is_asked_for) in fixes.items():
        if is_asked_for:
            raise UserError(
                f"{what} are submitted by the run's job, but site {site.name} has submit_from_compute: false", fix
            )


# --- on one machine ----------------------------------------------------------------------------


def _local_plan(config: RunConfig) -> Plan:
    workers = (*_on_cpu(config), *_engines(config), *_trainers(config))
    relays = _relays(config, workers) if _has_relays(config) else []
    return Plan(assign_devices((_controller(config), *workers, *relays)))


# --- on a cluster ------------------------------------------------------------------------------


def _component(index: int, lot: Lot, first_node: int, config: RunConfig, site: SiteConfig) -> Component:
    name, own = lot.hardware, site.classes[lot.hardware]
    mine = [_on_cores(proc, own) for proc in lot.procs]
    relay = _needs(config.weights).on_cores(own.threads_per_core) if _has_relays(config) else Needs()
    node = Needs(own.cpus, own.gpus, own.memory_gb or float("inf"))
    packs = [Pack(p.name, p.needs, brings=relay if _holds_weights(p) else Needs()) for p in mine]
    reserved = SUPERVISOR_NEEDS.on_cores(own.threads_per_core) if index == 0 else Needs()
    max_nodes = 0 if lot.is_split else own.max_nodes
    where, per_node = pack(packs, node, max_nodes, reserved, f"class {name} (partition {own.partition})")
    nodes = tuple(NODE.format(hardware=name, index=first_node + i) for i in range(max(where.values()) + 1))
    placed = [replace(proc, node=nodes[where[proc.name]]) for proc in mine]
    if _has_relays(config):
        placed += [_on_cores(proc, own) for proc in _relays(config, placed)]
    hourly = site.gpu(name).cost * len(nodes) * (per_node.gpus if own.gpus else 1)
    asked = Needs(per_node.cpus, per_node.gpus, per_node.memory_gb if own.memory_gb else 0.0)
    return Component(index, name, own.partition, nodes, asked, assign_devices(placed), hourly, lot.job, 0, lot.pool)


def _on_cores(proc: Proc, own: HardwareClass) -> Proc:
    """Every process is a step of the job. A step gets whole cores, so the job must request whole cores too."""
    return replace(proc, needs=proc.needs.on_cores(own.threads_per_core))


def _time_minutes(config: RunConfig, site: SiteConfig, used: list[str], otherwise: int = 0) -> int:
    """One limit for all components: Slurm's are independent, and a part of the job could end before the rest."""
    limits = [site.classes[name].max_minutes for name in used]
    known = [minutes for minutes in (config.job.time_minutes, *limits) if minutes] or [otherwise] * bool(otherwise)
    if not known:
        raise UserError(
            f"no time limit: neither the run nor the classes {', '.join(used)} of site {site.name} set one",
            "set one: job.time_minutes=240, or max_minutes of a class in the site file",
        )
    needed = math.ceil((config.job.signal_s + WORK_S) / 60)
    if min(known) < needed:
        raise UserError(
            f"a time limit of {min(known)} min leaves no time to train: the run checkpoints and requeues "
            f"job.signal_s = {config.job.signal_s} s before the limit",
            f"request {needed} min or more (job.time_minutes, max_minutes of the classes {', '.join(used)}), "
            "or lower job.signal_s",
        )
    return min(known)


# --- processes ---------------------------------------------------------------------------------


def _controller(config: RunConfig) -> Proc:
    return Proc(CONTROLLER, "controller", CPU, CPU, needs=_needs(config.controller))


def _on_cpu(config: RunConfig) -> Iterator[Proc]:
    for i in range(config.env.workers):
        yield Proc(f"env-{i}", "env", CPU, CPU, needs=_needs(config.env))
    for i in range(config.reward.workers):
        yield Proc(f"reward-{i}", "reward", CPU, CPU, needs=_needs(config.reward))


def engine_needs(config: RunConfig, pool: str, site: SiteConfig | None = None) -> Needs:
    return _needs(config.engine, _gpus(site, pool, config.engine.device, config.pools[pool].tensor_parallel))


def relay_needs(config: RunConfig) -> Needs | None:
    """None if nodes have no relay."""
    return _needs(config.weights) if _has_relays(config) else None


def _engines(config: RunConfig, site: SiteConfig | None = None) -> Iterator[Proc]:
    for pool, settings in config.pools.items():
        needs = engine_needs(config, pool, site)
        for i in range(settings.engines):
            yield Proc(f"engine-{pool}-{i}", "engine", pool, pool, pool=pool, needs=needs)


def _elastic(config: RunConfig, site: SiteConfig) -> Iterator[Proc]:
    """Engines that may join in addition, as many as there may be at once."""
    for pool, settings in config.pools.items():
        needs = engine_needs(config, pool, site)
        for i in range(settings.elastic.max):
            yield Proc(f"engine-{pool}-elastic-{i}", "engine", pool, pool, pool=pool, needs=needs)


def _trainers(config: RunConfig, site: SiteConfig | None = None) -> Iterator[Proc]:
    ranks = config.trainer.ranks
    needs = _needs(config.trainer, _gpus(site, COMPUTE, config.trainer.device, 1))
    for rank in range(ranks):
        yield Proc(f"trainer-{rank}", "trainer", COMPUTE, COMPUTE, rank=rank, ranks=ranks, needs=needs)


def _relays(config: RunConfig, workers: Iterable[Proc]) -> list[Proc]:
    """One relay per node that makes or uses weights."""
    homes: dict[str, str] = {}
    for proc in workers:
        if _holds_weights(proc):
            homes.setdefault(proc.node, proc.hardware)
    needs = _needs(config.weights)
    return [Proc(f"relay-{node}", "relay", hardware, node, needs=needs) for node, hardware in homes.items()]


class _Sized(Protocol):
    """A section of the configuration that says what its processes need."""

    cpus: int
    memory_gb: float


def _needs(section: _Sized, gpus: int = 0) -> Needs:
    return Needs(section.cpus, gpus, section.memory_gb)


def _gpus(site: SiteConfig | None, need: str, device: str, count: int) -> int:
    if site is None or site.launcher == "local" or device == "cpu":
        return 0
    return count if site.classes[site.serving(need)].gpus else 0


def _has_relays(config: RunConfig) -> bool:
    return config.weights.transport == "staged"


def _holds_weights(proc: Proc) -> bool:
    """Among the trainer's ranks, only rank 0 publishes weights."""
    return proc.role == "engine" or (proc.role == "trainer" and proc.rank == 0)
