"""A plan as text and as plain data, to review before anything is submitted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rollart_hpc.launch.fit import Fit, fit_rows
from rollart_hpc.launch.packing import Needs
from rollart_hpc.launch.plan import Component, Plan, Proc

_TITLES = ("component", "partition", "nodes", "of each node", "processes")
_ROLE_TITLES = ("role", "processes", "class", "GPUs", "CPUs", "memory")
_FIT_TITLES = ("memory of a", "class", "where", "needs", "of", "parts in GB", "")
_POOL_TITLES = ("pool", "profile", "engines", "GPUs each", "tasks that prefer it")


def fit_lines(fit: Fit) -> list[str]:
    """The table of memory, and what is not known."""
    rows = fit_rows(fit)
    lines = [*table(_FIT_TITLES, rows), ""] if rows else []
    warnings = [f"warning: {warning}" for warning in fit.warnings]
    return [*lines, *([fit.unknown] if fit.unknown else []), *warnings]


def plan_lines(plan: Plan) -> list[str]:
    if not plan.components:
        nodes = dict.fromkeys(proc.node for proc in plan.procs)
        return [f"  {node}: {', '.join(proc.name for proc in plan.procs if proc.node == node)}" for node in nodes]
    tables = [
        _component_table(plan),
        table(_ROLE_TITLES, _role_rows(plan)),
        table(_POOL_TITLES, _pool_rows(plan)),
    ]
    warnings = [f"warning: {warning}" for warning in plan.warnings]
    return [line for lines in tables for line in (*lines, "")] + [cost_line(plan), *_quota_lines(plan), *warnings]


def _component_table(plan: Plan) -> list[str]:
    """With a column for the jobs of their own, if there are any."""
    rows: list[tuple[str, ...]] = []
    for c in plan.components:
        row = (f"{c.index} {c.hardware}", c.partition, _nodes(c), _amount(c.per_node), _counted(c.procs))
        when = f" (on demand of pool {c.pool})" if c.pool else ""
        rows.append((*row, f"{c.job}{when}" if c.job else "the run's"))
    if plan.satellites:
        return table((*_TITLES, "job"), rows)
    return table(_TITLES, [row[:-1] for row in rows])


def cost_line(plan: Plan) -> str:
    """GPU-hours at most 12 (h800 8, h20 4), cost at most 26.8, in 4:00:00"""
    hours: dict[str, float] = {}
    for c in plan.components:
        if c.num_gpus:
            hours[c.hardware] = hours.get(c.hardware, 0.0) + c.num_gpus * plan.hours(c)
    shares = [f"{hardware} {amount:.4g}" for hardware, amount in hours.items()]
    listed = f" ({', '.join(shares)})" if len(shares) > 1 else ""
    cost = f", cost at most {plan.cost:.4g}" if plan.cost else ""
    return f"GPU-hours at most {plan.gpu_hours:.4g}{listed}{cost}; time limit {clock(plan.time_minutes)}"


def _quota_lines(plan: Plan) -> list[str]:
    """GPU quota: h800 16 of 24, h20 8 of 8"""
    used = [f"{c.hardware} {c.num_gpus} of {c.max_gpus}" for c in plan.components if c.max_gpus]
    return [f"GPU quota: {', '.join(used)}"] if used else []


def clock(minutes: int) -> str:
    """As Slurm writes a time limit: 1-02:30:00"""
    days, rest = divmod(minutes, 24 * 60)
    text = f"{rest // 60:02d}:{rest % 60:02d}:00"
    return f"{days}-{text}" if days else text


def plan_data(plan: Plan) -> dict[str, Any]:
    return {
        "time_minutes": plan.time_minutes,
        "gpu_hours": plan.gpu_hours,
        "cost": plan.cost,
        "components": [
            {
                "index": c.index,
                "class": c.hardware,
                "partition": c.partition,
                "nodes": list(c.nodes),
                "per_node": asdict(c.per_node),
                "gpus": c.num_gpus,
                "max_gpus": c.max_gpus,
                "whole_nodes": c.is_whole,
                "gpu_hours": c.num_gpus * plan.hours(c),
                "cost": c.cost_per_hour * plan.hours(c),
                "job": c.job,
                "procs": [proc.name for proc in c.procs],
            }
            for c in plan.components
        ],
        "roles": {role: {"procs": len(procs), **asdict(_sum(procs))} for role, procs in _by_role(plan.procs).items()},
        "pools": {pool.name: {**asdict(pool), "classes": plan.classes_of(pool.name)} for pool in plan.pools},
        "procs": [asdict(proc) for proc in plan.procs],
        "warnings": list(plan.warnings),
    }


def _role_rows(plan: Plan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for role, procs in _by_role(plan.procs).items():
        total = _sum(procs)
        classes = ", ".join(dict.fromkeys(c.hardware for c in plan.components if _has_role(c, role)))
        row = (role, str(len(procs)), classes, str(total.gpus), str(total.cpus), f"{total.memory_gb:g} GB")
        rows.append(row)
    return rows


def _pool_rows(plan: Plan) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for pool in plan.pools:
        engines = ", ".join(f"{count} {name}" for name, count in plan.classes_of(pool.name).items()) or "none"
        gpus = {proc.needs.gpus for proc in plan.of("engine") if proc.pool == pool.name}
        each = " or ".join(map(str, sorted(gpus))) or "0"
        rows.append((pool.name, pool.profile, engines, each, ", ".join(pool.tasks) or "none"))
    return rows


def _nodes(component: Component) -> str:
    return f"{len(component.nodes)} whole" if component.is_whole else str(len(component.nodes))


def _has_role(component: Component, role: str) -> bool:
    return any(proc.role == role for proc in component.procs)


def _by_role(procs: Iterable[Proc]) -> dict[str, list[Proc]]:
    found: dict[str, list[Proc]] = {}
    for proc in procs:
        found.setdefault(proc.role, []).append(proc)
    return found


def _sum(procs: Iterable[Proc]) -> Needs:
    return sum((proc.needs for proc in procs), Needs())


def _amount(needs: Needs) -> str:
    counts = ((needs.cpus, "CPU"), (needs.gpus, "GPU"))
    parts = [f"{count} {what}{'s' if count > 1 else ''}" for count, what in counts if count]
    return ", ".join([*parts, f"{needs.memory_gb:g} GB"] if needs.memory_gb else parts)


def _counted(procs: Iterable[Proc]) -> str:
    return ", ".join(f"{count} {role}" for role, count in Counter(proc.role for proc in procs).items())


def table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Columns of equal width."""
    widths = [max(len(row[i]) for row in (titles, *rows)) for i in range(len(titles))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in (titles, *rows)]
