"""Compares the limits of associations and QOS with what a plan requests. Reads the limits and does the arithmetic.

Slurm treats each component of a heterogeneous job as a job. Limits of a user or a group apply to all of them together,
and to the user's other jobs: those may have to end first. Limits of an account's parents apply as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rollart_hpc.config.site import SiteConfig
from rollart_hpc.launch.plan import Component, Plan
from rollart_hpc.launch.slurm.budget import seconds
from rollart_hpc.launch.slurm.commands import Slurm
from rollart_hpc.launch.slurm.own_jobs import OwnJob, read_own_jobs, running

Record = dict[str, str]
_OF_GROUP = ("GrpTRES", "GrpJobs", "GrpSubmit")
_ASSOCIATION = (
    "Account", "Partition", "QOS", "DefaultQOS", "MaxTRES", "MaxWall", "MaxJobs", "MaxSubmit", *_OF_GROUP,
)  # fmt: skip
_PARENT = ("Account", "ParentName", *_OF_GROUP)
_QOS = ("Name", "MaxTRES", "MaxTRESPU", "MaxWall", "MaxJobsPU", "MaxSubmitPU", *_OF_GROUP)
_MAX_TRES = ("MaxTRESPU", "GrpTRES")  # of all jobs together
_MAX_JOBS = ("MaxJobs", "MaxJobsPU", "GrpJobs")  # that run
_MAX_SUBMIT = ("MaxSubmit", "MaxSubmitPU", "GrpSubmit")  # that are in the queue
_DEEPEST = 20  # levels of accounts
_SIZES = {"K": 1 / 1024**2, "M": 1 / 1024, "G": 1.0, "T": 1024.0, "P": 1024.0**2}


@dataclass(frozen=True)
class Limits:
    associations: list[Record]
    qos: dict[str, Record]
    default_account: str = ""  # "": unknown
    parents: dict[str, list[Record]] = field(default_factory=dict)  # of each account: itself, its parent, and so on
    own_jobs: list[OwnJob] = field(default_factory=list)

    @classmethod
    def read(cls, slurm: Slurm, user: str, cluster: str) -> Limits:
        """The limits on this cluster: an accounting database may serve several."""
        mine = ("where", f"user={user}", f"cluster={cluster}")
        rows = slurm.accounts("sacctmgr", _ASSOCIATION, "show", "associations", *mine)
        users = slurm.accounts("sacctmgr", ("DefaultAccount",), "show", "user", "where", f"name={user}")
        levels = slurm.accounts("sacctmgr", _QOS, "show", "qos")
        default = users[0]["DefaultAccount"] if users else ""
        parents = {account: list(_parents(slurm, account, cluster)) for account in {row["Account"] for row in rows}}
        return cls(rows, {row["Name"]: row for row in levels}, default, parents, read_own_jobs(slurm, user))

    @property
    def accounts(self) -> list[str]:
        return sorted({row["Account"] for row in self.associations})

    def association(self, account: str, partition: str) -> Record | None:
        """The association for this account. "" means the user's default; if that is not known here, the first."""
        mine = [row for row in self.associations if row["Account"] == (account or self.default_account)]
        if not account and not mine:
            mine = self.associations
        exact = [row for row in mine if row["Partition"] in partition.split(",")]
        general = [row for row in mine if not row["Partition"]]
        return next(iter(exact or general), None)

    def sources(self, association: Record, qos: str) -> Iterator[tuple[str, Record, list[OwnJob]]]:
        """Each source of limits by name, and the user's jobs that it also limits."""
        account = association["Account"]
        yield f"account {account}", association, [job for job in self.own_jobs if job.account == account]
        for row in self.parents.get(account, []):
            name = row["Account"]
            below = {own for own, above in self.parents.items() if any(each["Account"] == name for each in above)}
            yield f"account {name}", row, [job for job in self.own_jobs if job.account in below]
        if qos in self.qos:
            yield f"QOS {qos}", self.qos[qos], [job for job in self.own_jobs if job.qos == qos]


def _parents(slurm: Slurm, account: str, cluster: str) -> Iterator[Record]:
    """Limits of groups are not inherited, so each level has its own."""
    for _ in range(_DEEPEST):
        mine = ("where", f"account={account}", f"cluster={cluster}", "user=")
        rows = slurm.accounts("sacctmgr", _PARENT, "show", "associations", *mine)
        yield from rows[:1]
        account = rows[0]["ParentName"] if rows else ""
        if not account:
            return


def exceeded(
    limits: Limits, association: Record, qos: str, component: Component, plan: Plan, site: SiteConfig
) -> Iterator[str]:
    """Why Slurm would never start this component, or would refuse it."""
    for source, row, others in limits.sources(association, qos):
        yield from (f"{source}: {said}" for said in _tres(row.get("MaxTRES", ""), [component], site))
        for key in _MAX_TRES:
            yield from (f"{source}: {said}" for said in _tres(row.get(key, ""), plan.components, site))
        wall_s, minutes = seconds(row.get("MaxWall", "")), component.minutes or plan.time_minutes
        if minutes * 60 > wall_s:
            yield (
                f"{source}: jobs may take {wall_s / 60:g} min, this one requests {minutes}; "
                f"set job.time_minutes={wall_s // 60:g}"
            )
        num_parts, num_others = len(plan.components), len(others)
        most, submit = _least(row, _MAX_JOBS), _least(row, _MAX_SUBMIT)
        if num_parts > most:
            said = f"{most:g} jobs may run at a time, this run has {num_parts} components, and each counts"
            yield f"{source}: {said}; use another QOS, or fewer classes"
        if num_parts > submit:
            said = f"allows {submit:g} jobs at a time, this run has {num_parts} components"
            yield f"{source}: {said}; use another QOS, or fewer classes"
        elif num_parts + num_others > submit:
            said = f"allows {submit:g} jobs in the queue, you have {num_others}, this run has {num_parts} components"
            yield f"{source}: {said}; wait for some of them, or use another QOS"


def waits(limits: Limits, association: Record, qos: str, plan: Plan, site: SiteConfig) -> Iterator[str]:
    """Which limits let the run start only after other jobs of the user have ended."""
    for source, row, others in limits.sources(association, qos):
        busy = running(others)
        for key in _MAX_TRES:
            for name, allowed, wanted in _wanted(row.get(key, ""), plan.components, site):
                taken = sum(job.amount(name) for job in busy)
                if wanted <= allowed < wanted + taken:
                    yield f"{source}: {name} is limited to {allowed:g}, your running jobs have {taken:g} of them"
        most, num_parts = _least(row, _MAX_JOBS), len(plan.components)
        if num_parts <= most < num_parts + len(busy):
            said = f"{most:g} jobs may run at a time, {len(busy)} of yours do"
            yield f"{source}: {said}, this run has {num_parts} components"


def _least(row: Record, keys: Sequence[str]) -> float:
    return min((float(row[key]) for key in keys if row.get(key, "").isdigit()), default=math.inf)


def _tres(limit: str, parts: Sequence[Component], site: SiteConfig) -> Iterator[str]:
    shown = dict(item.partition("=")[::2] for item in limit.split(","))
    for name, allowed, wanted in _wanted(limit, parts, site):
        if wanted > allowed:
            yield f"{name} is limited to {shown[name]}, this run needs {wanted:g}; request less, or use another QOS"


def _wanted(limit: str, parts: Sequence[Component], site: SiteConfig) -> Iterator[tuple[str, float, float]]:
    """Each resource of a limit: its name, what is allowed, what the parts need."""
    for item in limit.split(","):
        name, _, value = item.partition("=")
        yield name, _number(value), sum(_amount(name, part, site.classes[part.hardware].gres) for part in parts)


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
