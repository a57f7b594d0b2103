"""Pools of engines as a run file describes them: their settings, their profile, the tasks they serve. Knows no site.

A profile that depends on the hardware is found by `config.classes` when files are loaded, and stored in the pool.
"""

from __future__ import annotations

from dataclasses import replace

from rollart_hpc.config.schema import EngineConfig, PoolConfig, RunConfig
from rollart_hpc.hardware import ANY, AUTO, PROFILES


def engine_of(config: RunConfig, pool: str) -> EngineConfig:
    """The section `engine` as it counts in this pool."""
    own = config.pools.get(pool, PoolConfig()).engine
    options = {**config.engine.options, **own.get("options", {})}
    return replace(config.engine, **{**own, "options": options})


def profile_of(pool: str, settings: PoolConfig) -> str:
    """compute, bandwidth or any."""
    return settings.profile or (pool if pool in PROFILES else ANY)


def pools_with(config: RunConfig, profile: str) -> tuple[str, ...]:
    """Pools of exactly this profile."""
    return tuple(name for name, pool in config.pools.items() if profile_of(name, pool) == profile)


def pools_for(config: RunConfig, affinity: str) -> tuple[str, ...]:
    """Pools that tasks with this affinity prefer; () = every pool, with auto until the core has chosen.

    A profile that no pool has stands for a pool without engines: others serve its tasks, counted as fallbacks.
    """
    if affinity in (ANY, AUTO):
        return ()
    if affinity not in PROFILES:
        return (affinity,)
    return tuple(name for name, pool in config.pools.items() if profile_of(name, pool) in (affinity, ANY)) or (
        affinity,
    )


def has_engines(pool: PoolConfig) -> bool:
    """True if engines will join without anybody's help."""
    return pool.engines > 0 or pool.elastic.min > 0
