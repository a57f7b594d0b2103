"""Which hardware classes of a site a run uses. Owns the defaults, the problems, and profiles that depend on hardware.

controller, env, reward   their key `class`, else the class that serves cpu
trainer                   its key `class`, else the class that serves compute
pools.NAME                its key `class`, else the class that serves the profile of the pool
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rollart_hpc.config.check import nearest
from rollart_hpc.config.pools import has_engines
from rollart_hpc.config.schema import PoolConfig, RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.hardware import ANY, BANDWIDTH, COMPUTE, CPU, PROFILES

_NEEDS = {"controller": CPU, "trainer": COMPUTE, "env": CPU, "reward": CPU}


class Homes(NamedTuple):
    """Names of classes; an empty one means that nothing serves the need."""

    controller: str
    trainer: str
    env: str
    reward: str
    pools: dict[str, tuple[str, ...]]  # in the order in which they are filled


def homes_of(config: RunConfig, site: SiteConfig) -> Homes:
    roles = {role: getattr(config, role).class_ or site.serving(need) for role, need in _NEEDS.items()}
    pools = {name: tuple(pool.class_) or _default(name, pool, site) for name, pool in config.pools.items()}
    return Homes(**roles, pools=pools)


def _default(name: str, pool: PoolConfig, site: SiteConfig) -> tuple[str, ...]:
    need = name if name in PROFILES else pool.profile
    found = site.serving(need)
    return (found,) if found else ()


def find_class_problems(config: RunConfig, site: SiteConfig) -> Iterator[str]:
    """Classes that the site lacks, and needs that no class serves."""
    if site.launcher == "local":
        return
    homes = homes_of(config, site)
    for role, need in _NEEDS.items():
        name = getattr(homes, role)
        if not name:
            yield f"{role}.class: not set, and no class of site {site.name} serves {need}; {_choose(site)}"
        elif name not in site.classes:
            yield f"{role}.class: site {site.name} has no class {name!r}; {nearest(name, list(site.classes))}"
    for pool, names in homes.pools.items():
        if not names and (has_engines(config.pools[pool]) or config.pools[pool].elastic.max):
            yield f"pools.{pool}.class: not set, and nothing says which class of {site.name} it is; {_choose(site)}"
        for name in names:
            if name not in site.classes:
                yield f"pools.{pool}.class: site {site.name} has no class {name!r}; {nearest(name, list(site.classes))}"
        if len(set(names)) < len(names):
            yield f"pools.{pool}.class: {', '.join(names)} names a class twice; remove one"


def _choose(site: SiteConfig) -> str:
    return f"choose one of {', '.join(site.classes)}"


def set_profiles(config: RunConfig, site: SiteConfig) -> None:
    """Store in each pool the profile that its hardware gives it, unless the run or the pool's name says it."""
    if site.launcher == "local":
        return
    for name, names in homes_of(config, site).pools.items():
        pool = config.pools[name]
        if not pool.profile and name not in PROFILES:
            pool.profile = _profile(names, site)


def _profile(names: tuple[str, ...], site: SiteConfig) -> str:
    """What its classes serve; if they serve nothing, by the figures of the site's GPUs."""
    served = set().union(*(site.needs_served_by(name) for name in names)) - {CPU}
    found = served or {_by_figures(name, site) for name in names}
    return found.pop() if len(found) == 1 else ANY


def _by_figures(name: str, site: SiteConfig) -> str:
    """The class with the most FLOPS per byte of bandwidth is for compute, the others are for bandwidth."""
    figures = {each: site.gpu(each) for each, own in site.classes.items() if own.gpus}
    richness = {
        each: gpu.tflops / gpu.bandwidth_tb_s for each, gpu in figures.items() if gpu.tflops and gpu.bandwidth_tb_s
    }
    if name not in richness or len(set(richness.values())) < 2:
        return ANY
    return COMPUTE if richness[name] == max(richness.values()) else BANDWIDTH
