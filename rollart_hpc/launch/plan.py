"""The processes of a run and where they run. Owns their placement; starts nothing.

    role                class of the site                          processes
    controller          controller.class, else what serves cpu     controller
    trainer             trainer.class, else what serves compute    trainer-R
    pools.NAME          its class or classes                       engine-NAME-I
    env, reward         env.class, reward.class, else cpu          env-I, reward-I
    each node that makes or uses weights also has a relay: relay-NODE

On one machine every pool is a node, and so are `cpu` and, if no pool has its class, the trainer: they share the host,
but each has its own relay and weight store, like a real node. On a cluster a node is CLASS-I, e.g. `h800-0`: the I-th
node of that hardware class. Processes that share a job are packed together (`launch.lots`): all of a class, or with
`launch.mode: jobs` the trainer and the engines apart. The controller's component is the first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from rollart_hpc.config.automatic import find_auto_problems
from rollart_hpc.config.classes import Homes, find_class_problems, homes_of
from rollart_hpc.config.launchers import is_cluster
from rollart_hpc.config.pools import pools_for, profile_of
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import ConfigError, UserError
from rollart_hpc.hardware import COMPUTE, CPU
from rollart_hpc.launch import roster
from rollart_hpc.launch.devices import assign_devices
from rollart_hpc.launch.lots import lots_of, separate
from rollart_hpc.launch.planned import CONTROLLER, Component, Plan, PlannedPool, Proc
from rollart_hpc.launch.share import Share
from rollart_hpc.launch.sizes import find_shortfalls

__all__ = ["CONTROLLER", "Component", "Plan", "PlannedPool", "Proc", "make_plan"]
WORK_S = 120  # minimum time of a job before its last checkpoint; Slurm's signal may come a minute early


def make_plan(config: RunConfig, site: SiteConfig | None = None) -> Plan:
    if site is None:
        return _local_plan(config)
    problems = list(find_class_problems(config, site)) or list(find_auto_problems(config, site))
    if problems:
        raise ConfigError(f"run {config.name} at site {site.name}", problems)
    if not is_cluster(site.launcher):
        return _local_plan(config)
    _need_submission(config, site)
    return _cluster_plan(config, site)


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
    engines = [proc for pool in config.pools for proc in roster.engines(config, pool, pool)]
    workers = [*roster.envs(config, CPU), *roster.rewards(config, CPU), *engines]
    workers += roster.trainers(config, _trainer_node(config))
    procs = (roster.controller(config, CPU), *workers, *roster.relays(config, workers))
    return Plan(assign_devices(procs), pools=_pools(config))


def _trainer_node(config: RunConfig) -> str:
    """That of the first pool of its class, else one of its own."""
    wanted = config.trainer.class_ or COMPUTE
    return next((name for name, pool in config.pools.items() if wanted in (pool.class_ or [name])), wanted)


# --- on a cluster ------------------------------------------------------------------------------


def _cluster_plan(config: RunConfig, site: SiteConfig) -> Plan:
    homes = homes_of(config, site)
    order = [homes.controller, homes.trainer, *(name for names in homes.pools.values() for name in names)]
    names = list(dict.fromkeys([*order, homes.env, homes.reward]))
    shares = {name: Share(name, config, site, name == homes.controller) for name in names}
    _give(config, homes, shares)
    components, minutes = _components(config, site, homes, shares)
    procs = tuple(proc for component in components for proc in component.procs)
    gpus = {proc.pool: proc.needs.gpus for proc in procs if proc.pool}
    shortfalls = tuple(dict.fromkeys(find_shortfalls(config, gpus)))
    return Plan(procs, components, minutes, _pools(config), shortfalls)


def _components(
    config: RunConfig, site: SiteConfig, homes: Homes, shares: dict[str, Share]
) -> tuple[tuple[Component, ...], int]:
    """The components of the run's own job, then those of others; and the time limit of the run's own job."""
    wanted = tuple(proc for share in shares.values() for proc in share.procs)
    lots = lots_of(config, wanted, tuple(_elastic(config, homes, shares)))
    minutes = _time_minutes(config, site, list(dict.fromkeys(lot.hardware for lot in lots if not lot.job)))
    components: list[Component] = []
    for lot in lots:
        share = Share(lot.hardware, config, site, not components)
        share.procs = list(lot.procs)
        first_node = sum(len(known.nodes) for known in components if known.hardware == lot.hardware)
        component = share.component(len(components), first_node, is_limited=not lot.is_split)
        if lot.job:
            own = _time_minutes(config, site, [lot.hardware], minutes)
            component = replace(component, job=lot.job, pool=lot.pool, minutes=own)
        components += separate(component) if lot.is_split else [component]
    return tuple(components), minutes


def _elastic(config: RunConfig, homes: Homes, shares: dict[str, Share]) -> Iterator[Proc]:
    """Engines that may join in addition, as many as there may be at once, on the first class of their pool."""
    for pool, names in homes.pools.items():
        if not names:
            continue  # a pool without engines needs no class
        home = shares[names[0]]
        yield from home.on_cores(roster.elastic_engines(config, pool, home.name, home.has_gpus))


def _give(config: RunConfig, homes: Homes, shares: dict[str, Share]) -> None:
    """Pools that may use several classes come last: they get what the others leave."""
    shares[homes.controller].take([roster.controller(config, homes.controller)])
    home = shares[homes.trainer]
    home.take(roster.trainers(config, home.name, home.has_gpus))
    for pool, names in homes.pools.items():
        if len(names) == 1:
            home = shares[names[0]]
            home.take(roster.engines(config, pool, home.name, home.has_gpus))
    shares[homes.env].take(roster.envs(config, homes.env))
    shares[homes.reward].take(roster.rewards(config, homes.reward))
    for pool, names in homes.pools.items():
        if len(names) > 1:
            _spread(config, pool, [shares[name] for name in names])


def _spread(config: RunConfig, pool: str, shares: list[Share]) -> None:
    """Fill one class after the other."""
    wanted, num = config.pools[pool].engines, 0
    fitting: dict[str, int] = {}
    for share in shares:
        more = roster.engines(config, pool, share.name, share.has_gpus)[num:]
        fitting[share.name] = share.room_for(more)
        share.take(more[: fitting[share.name]])
        num += fitting[share.name]
    if num < wanted:
        listed = ", ".join(f"{count} in {name}" for name, count in fitting.items())
        raise UserError(
            f"pools.{pool}: its classes have room for {num} of {wanted} engines: {listed}",
            "request fewer or smaller engines, add a class, or raise max_nodes or max_gpus in the site file",
        )


def _pools(config: RunConfig) -> tuple[PlannedPool, ...]:
    wishes = {name: pools_for(config, task.affinity) for name, task in config.tasks.items()}
    return tuple(
        PlannedPool(
            name, profile_of(name, pool), tuple(task for task, pools in wishes.items() if not pools or name in pools)
        )
        for name, pool in config.pools.items()
    )


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
