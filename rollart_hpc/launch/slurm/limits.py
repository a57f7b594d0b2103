"""Compares the limits of associations and QOS with what a plan requests. Reads the limits and does the arithmetic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rollart_hpc.config.site import SiteConfig
from rollart_hpc.launch.plan import Component, Plan
from rollart_hpc.launch.slurm.budget import seconds
from rollart_hpc.launch.slurm.commands import Slurm

Record = dict[str, str]
_ASSOCIATION = ("Account", "Partition", "QOS", "DefaultQOS", "MaxTRES", "GrpTRES", "MaxWall", "MaxSubmit")
_QOS = ("Name", "MaxTRES", "MaxTRESPU", "GrpTRES", "MaxWall", "MaxSubmitPU")
_OF_ONE_JOB = ("MaxTRES",)
_OF_ALL_JOBS = ("MaxTRESPU", "GrpTRES")
_SIZES = {"K": 1 / 1024**2, "M": 1 / 1024, "G": 1.0, "T": 1024.0, "P": 1024.0**2}


@dataclass(frozen=True)
class Limits:
    associations: list[Record]
    qos: dict[str, Record]
    default_account: str = ""  # "": unknown

    @classmethod
    def read(cls, slurm: Slurm, user: str, cluster: str) -> Limits:
        """The limits on this cluster: an accounting database may serve several."""
        mine = ("where", f"user={user}", f"cluster={cluster}")
        rows = slurm.accounts("sacctmgr", _ASSOCIATION, "show", "associations", *mine)
        users = slurm.accounts("sacctmgr", ("DefaultAccount",), "show", "user", "where", f"name={user}")
        levels = slurm.accounts("sacctmgr", _QOS, "show", "qos")
        default = users[0]["DefaultAccount"] if users else ""
        return cls(rows, {row["Name"]: row for row in levels}, default)

    @property
    def accounts(self) -> list[str]:
        return sorted({row["Account"] for row in self.associations})

    def association(self, account: str, partition: str) -> Record | None:
        """The association for this account. "" means the user's default; if that is not known here, the first."""
        mine = [row for row in self.associations if row["Account"] == (account or self.default_account)]
        if not account and not mine:
            mine = self.associations
        exact = [row for row in mine if row["Partition"] == partition]
        general = [row for row in mine if not row["Partition"]]
        return next(iter(exact or general), None)


def exceeded(
    limits: Limits, association: Record, qos: str, component: Component, plan: Plan, site: SiteConfig
) -> Iterator[str]:
    """Slurm treats each component as a job. Limits of a user or a group apply to all of them together."""
    sources = [(f"account {association['Account']}", association)]
    if qos in limits.qos:
        sources.append((f"QOS {qos}", limits.qos[qos]))
    for source, row in sources:
        for key in (*_OF_ONE_JOB, *_OF_ALL_JOBS):
            parts = [component] if key in _OF_ONE_JOB else plan.components
            yield from (f"{source}: {problem}" for problem in _tres(row.get(key, ""), parts, site))
        wall_s = seconds(row.get("MaxWall", ""))
        if plan.time_minutes * 60 > wall_s:
            yield (
                f"{source}: jobs may take {wall_s / 60:g} min, this one requests {plan.time_minutes}; "
                f"set job.time_minutes={wall_s // 60:g}"
            )
        submit = row.get("MaxSubmitPU") or row.get("MaxSubmit") or ""
        if submit.isdigit() and len(plan.components) > int(submit):
            yield (
                f"{source}: allows {submit} jobs at a time, this run has {len(plan.components)} components; "
                "use another QOS"
            )


def _tres(limit: str, parts: list[Component] | tuple[Component, ...], site: SiteConfig) -> Iterator[str]:
    for item in limit.split(","):
        name, _, value = item.partition("=")
        wanted = sum(_amount(name, part, site.classes[part.hardware].gres) for part in parts)
        allowed = _number(value)
        if wanted > allowed:
            yield f"{name} is limited to {value}, this run needs {wanted:g}; request less, or use another QOS"


def _amount(name: str, part: Component, gres: str) -> float:
    if name == "gres/gpu" or (gres and name.lower() == f"gres/gpu:{gres.lower()}"):
        return part.num_gpus
    figures = {"cpu": part.num_cpus, "node": len(part.nodes), "mem": len(part.nodes) * part.per_node.memory_gb}
    return figures.get(name, 0.0)


def _number(text: str) -> float:
    """Parses a count, or an amount of memory with a unit, which is returned in GB."""
    try:
        return float(text[:-1]) * _SIZES[text[-1]] if text[-1:] in _SIZES else float(text)
    except ValueError:
        return math.inf
