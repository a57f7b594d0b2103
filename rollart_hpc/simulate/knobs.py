"""What a planner may change about a run, within the GPUs of each class. Owns the moves; simulates nothing.

A move is a small set of keys with new values. GPUs that one process gives up another one of the same class may take.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from rollart_hpc.config.automatic import options_of
from rollart_hpc.config.check import nearest
from rollart_hpc.config.classes import Homes, homes_of
from rollart_hpc.config.modes import preset_of
from rollart_hpc.config.rules import find_conflicts
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import UserError

Changes = Mapping[str, Any]  # key of the run file -> value
VARY = ("engines", "tensor", "trainer", "affinity", "split", "streaming")
WITH_A_PRICE = ("redundancy", "alpha")  # what is learnt changes too: only if asked for
MAX_ALPHA, MAX_REDUNDANCY = 4, 4


class Move(NamedTuple):
    kind: str  # one of VARY or WITH_A_PRICE
    helps: tuple[str, ...]  # what binds where it is likely to help: trainer, weights, latency, or a pool
    changes: dict[str, Any]


def with_changes(config: RunConfig, changes: Changes) -> RunConfig:
    changed = deepcopy(config)
    for key, value in changes.items():
        section, _, last = key.rpartition(".")
        setattr(value_of(changed, section), last, value)
    return changed


def value_of(config: RunConfig, key: str) -> Any:
    here: Any = config
    for name in key.split("."):
        here = here[name] if isinstance(here, dict) else getattr(here, name)
    return here


# --- GPUs ----------------------------------------------------------------------------------------


def gpus_used(config: RunConfig, homes: Homes) -> dict[str, int]:
    """By class. A pool with several classes counts as one of the first."""
    used = {homes.trainer: config.trainer.ranks}
    for pool, names in homes.pools.items():
        if names:
            settings = config.pools[pool]
            used[names[0]] = used.get(names[0], 0) + settings.engines * settings.tensor_parallel
    return used


def budget_of(config: RunConfig, site: SiteConfig, given: list[str]) -> dict[str, int]:
    """GPUs by class: as many as the run has, or as `given` (CLASS=N) says, up to what the site has."""
    budget = gpus_used(config, homes_of(config, site))
    for text in given:
        name, _, number = text.partition("=")
        if name not in budget:
            raise UserError(f"--gpus {text}: the run uses no class {name!r}", nearest(name, list(budget)))
        if not number.isdigit() or not int(number):
            raise UserError(f"--gpus {text}: not a number of GPUs above 0", f"write --gpus {name}=8")
        budget[name] = int(number)
    for name, count in budget.items():
        own = site.classes[name]
        most = min(n for n in (own.max_gpus, own.max_nodes * own.gpus, 1 << 30) if n)
        if count > most:
            fix = f"use at most --gpus {name}={most}, or correct max_nodes and max_gpus of the class"
            raise UserError(f"{count} GPUs of class {name} are more than site {site.name} gives a job: {most}", fix)
    return budget


def find_illegal(config: RunConfig, homes: Homes, budget: Mapping[str, int]) -> str:
    """Why this run can't be: empty if it can."""
    over = [name for name, count in gpus_used(config, homes).items() if count > budget.get(name, 0)]
    if over:
        return f"more GPUs of class {over[0]} than the budget has"
    return next(iter(find_conflicts(config)), "")


def fitted_to(config: RunConfig, homes: Homes, budget: Mapping[str, int]) -> dict[str, Any]:
    """The fewest changes that bring a run within a smaller budget: engines go, and then ranks."""
    changes: dict[str, Any] = {}
    for name, most in budget.items():
        over = gpus_used(with_changes(config, changes), homes).get(name, 0) - most
        for pool in [pool for pool, names in homes.pools.items() if names[:1] == (name,)]:
            settings = config.pools[pool]
            gone = min(settings.engines, max(0, -(-over // settings.tensor_parallel)))
            if gone:
                changes[f"pools.{pool}.engines"] = settings.engines - gone
                over -= gone * settings.tensor_parallel
        if over > 0 and homes.trainer == name:
            changes["trainer.ranks"] = config.trainer.ranks - over
    return changes


# --- moves ---------------------------------------------------------------------------------------


def moves(config: RunConfig, site: SiteConfig, budget: Mapping[str, int], vary: tuple[str, ...]) -> Iterator[Move]:
    homes = homes_of(config, site)
    makers = {
        "engines": lambda: _engines(config, site, homes, budget),
        "trainer": lambda: _trainer(config, site, homes, budget),
        "tensor": lambda: _tensor(config, site, homes),
        "affinity": lambda: _affinity(config),
        "split": lambda: _split(config),
        "streaming": lambda: _streaming(config),
        "redundancy": lambda: _redundancy(config),
        "alpha": lambda: _alpha(config),
    }
    for kind in vary:
        for move in makers[kind]():
            if not find_illegal(with_changes(config, move.changes), homes, budget):
                yield move


def _free(config: RunConfig, homes: Homes, budget: Mapping[str, int], name: str) -> int:
    return budget.get(name, 0) - gpus_used(config, homes).get(name, 0)


def _pools_of(config: RunConfig, homes: Homes, name: str) -> list[str]:
    return [pool for pool, names in homes.pools.items() if names[:1] == (name,) and config.pools[pool].engines]


def _node(site: SiteConfig, name: str) -> int:
    return max(1, site.classes[name].gpus)


def _engines(config: RunConfig, site: SiteConfig, homes: Homes, budget: Mapping[str, int]) -> Iterator[Move]:
    """GPUs that nobody uses become engines; two pools of a class exchange a node's worth, or a quarter."""
    for name in budget:
        pools, free = _pools_of(config, homes, name), _free(config, homes, budget, name)
        for pool in pools:
            settings = config.pools[pool]
            if more := free // settings.tensor_parallel:
                yield Move("engines", (f"pool {pool}", "latency"), {f"pools.{pool}.engines": settings.engines + more})
            for other in pools:
                theirs = config.pools[other]
                for gpus in {_node(site, name), settings.engines * settings.tensor_parallel // 4} - {0}:
                    lost, won = gpus // settings.tensor_parallel, gpus // theirs.tensor_parallel
                    if other != pool and 0 < lost < settings.engines and won:
                        changes = {f"pools.{pool}.engines": settings.engines - lost}
                        changes[f"pools.{other}.engines"] = theirs.engines + won
                        yield Move("engines", (f"pool {other}",), changes)


def _trainer(config: RunConfig, site: SiteConfig, homes: Homes, budget: Mapping[str, int]) -> Iterator[Move]:
    """train:generate. Ranks change by nodes, or by halves of a small trainer."""
    name, ranks = homes.trainer, config.trainer.ranks
    free = _free(config, homes, budget, name)
    steps = {n for n in (_node(site, name), 2 * _node(site, name), ranks // 2) if n}
    for pool in _pools_of(config, homes, name):
        settings = config.pools[pool]
        tensor = settings.tensor_parallel
        for gpus in sorted(steps, reverse=True):
            lost = -(-max(0, gpus - free) // tensor)
            if lost < settings.engines:
                changes = {"trainer.ranks": ranks + gpus, f"pools.{pool}.engines": settings.engines - lost}
                yield Move("trainer", ("trainer",), changes)
            if gpus < ranks and gpus // tensor:
                changes = {"trainer.ranks": ranks - gpus, f"pools.{pool}.engines": settings.engines + gpus // tensor}
                yield Move("trainer", (f"pool {pool}", "latency"), changes)


def _tensor(config: RunConfig, site: SiteConfig, homes: Homes) -> Iterator[Move]:
    """Twice or half the GPUs per engine, with as many GPUs in the pool."""
    for pool, names in homes.pools.items():
        settings = config.pools[pool]
        gpus = settings.engines * settings.tensor_parallel
        most = min((_node(site, name) for name in names), default=1)
        for tensor in (settings.tensor_parallel * 2, settings.tensor_parallel // 2):
            if 1 <= tensor <= most and gpus // tensor:
                changes = {f"pools.{pool}.tensor_parallel": tensor, f"pools.{pool}.engines": gpus // tensor}
                helps = ("latency",) if tensor > settings.tensor_parallel else (f"pool {pool}",)
                yield Move("tensor", helps, changes)


def _affinity(config: RunConfig) -> Iterator[Move]:
    busy = tuple(f"pool {pool}" for pool in config.pools)
    for name, task in config.tasks.items():
        for option, pools in options_of(config).items():
            if option != task.affinity and all(config.pools[pool].engines for pool in pools):
                yield Move("affinity", busy, {f"tasks.{name}.affinity": option})


def _split(config: RunConfig) -> Iterator[Move]:
    for name, task in config.tasks.items():
        yield Move("split", tuple(f"pool {pool}" for pool in config.pools), {f"tasks.{name}.split": not task.split})


def _streaming(config: RunConfig) -> Iterator[Move]:
    if preset_of(config.mode).streaming and not config.flow.streaming and not config.algorithm.needs_whole_batch:
        yield Move("streaming", ("latency", "trainer"), {"flow.streaming": True})


def _redundancy(config: RunConfig) -> Iterator[Move]:
    if preset_of(config.mode).redundancy and not config.deterministic:
        for key in ("redundancy", "redundant_groups"):
            now = getattr(config.flow, key)
            for count in (now + 1, now - 1):
                if 0 <= count <= MAX_REDUNDANCY:
                    yield Move("redundancy", ("latency",), {f"flow.{key}": count})


def _alpha(config: RunConfig) -> Iterator[Move]:
    if preset_of(config.mode).alpha is None:
        for alpha in (config.flow.alpha + 1, config.flow.alpha - 1):
            if 0 <= alpha <= MAX_ALPHA:
                yield Move("alpha", ("latency", "weights"), {"flow.alpha": alpha})
