"""What each task of a run would use, as text and as plain data. Owns the listing of `check`; decides nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rollart_hpc.config.modes import preset_of
from rollart_hpc.config.pools import has_engines, pools_for
from rollart_hpc.config.schema import RunConfig, TaskConfig
from rollart_hpc.launch.summary import table

_TITLES = ("task", "share of the batch", "groups", "turns", "tokens", "pools", "environment", "reward")


def task_data(config: RunConfig) -> dict[str, dict[str, Any]]:
    total = sum(task.weight for task in config.tasks.values())
    flow = replace(config.flow, **preset_of(config.mode).forced)
    return {
        name: {
            "environment": task.environment,
            "reward": task.reward,
            "isolation": task.isolation,
            "pools": _pools(config, task),
            "split": task.split,
            "weight": task.weight,
            "share": task.weight / total,
            "groups_per_step": task.weight / total * flow.groups_per_step,
            "group_size": flow.group_size,
            "redundancy": flow.redundancy,
            "max_turns": task.max_turns,
            "max_response_tokens": task.max_response_tokens,
            "max_tokens": task.max_tokens,
            "validation_plays": config.validation.plays,
        }
        for name, task in config.tasks.items()
    }


def task_lines(config: RunConfig) -> list[str]:
    rows = [_row(name, found) for name, found in task_data(config).items()]
    plays = config.validation.plays
    held_out = f"odd ones in validations ({plays} plays per task)" if plays else "odd ones are not used: no validation"
    return [*table(_TITLES, rows), f"seeds: even ones in training (from seed {config.seed}), {held_out}"]


def _row(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    spare = f"+{found['redundancy']}" if found["redundancy"] else ""
    return (
        name,
        f"{found['share']:.0%} (weight {found['weight']:g})",
        f"{found['groups_per_step']:.3g} of {found['group_size']}{spare}",
        f"up to {found['max_turns']}",
        f"{found['max_response_tokens']} a turn, {found['max_tokens']} in all",
        ", ".join(found["pools"]) + (" (split)" if found["split"] else ""),
        found["environment"],
        found["reward"],
    )


def _pools(config: RunConfig, task: TaskConfig) -> list[str]:
    """Those that it prefers and that have engines; if there are none, all others serve it."""
    there = [name for name, pool in config.pools.items() if has_engines(pool) or pool.elastic.max]
    return [name for name in there if name in pools_for(config, task.affinity)] or there
