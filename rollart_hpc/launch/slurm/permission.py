"""Would the cluster accept this run? Compares a plan with partitions, associations and QOS limits.

Makes a few short queries and submits nothing. The problems it finds would leave the job pending forever or have it
rejected. Slurm itself has the last word (`submit.test_script`).
"""

from __future__ import annotations

import getpass
import os
from collections.abc import Iterator

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import UserError
from rollart_hpc.launch.plan import Component, Plan
from rollart_hpc.launch.slurm.budget import seconds
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError
from rollart_hpc.launch.slurm.limits import Limits, exceeded, waits
from rollart_hpc.launch.slurm.unix_groups import own_groups

Record = dict[str, str]
_ANY = ("", "ALL", "(null)", "N/A")


def need_permission(slurm: Slurm, plan: Plan, config: RunConfig, site: SiteConfig) -> list[str]:
    """Raises one error with every reason why the cluster would not run it. Returns what it would only wait for."""
    partitions = {row["PartitionName"]: row for row in slurm.records("--all", "show", "partition")}
    found, notes = _accounting(slurm, plan, config, site)
    for component in plan.components:
        found += _partitions(
            partitions, component, component.minutes or plan.time_minutes, _asked(component, config, site)
        )
    if found:
        lines = "\n".join(f"  - {problem}" for problem in dict.fromkeys(found))
        raise UserError(
            f"the cluster would not run this:\n{lines}", "nothing was submitted; correct this and try again"
        )
    return list(dict.fromkeys(notes))


def _partitions(partitions: dict[str, Record], component: Component, minutes: int, asked: tuple[str, str]) -> list[str]:
    """Of several partitions (`a,b`) Slurm uses the one that starts the job first: one that may is enough."""
    names = component.partition.split(",")
    missing = [name for name in names if name not in partitions]
    if missing:
        fix = f"set classes.{component.hardware}.partition to one of: {', '.join(partitions)}"
        return [f"partition {name} does not exist; {fix}" for name in missing]
    problems = {name: list(_partition(partitions[name], component, minutes, asked)) for name in names}
    if not all(problems.values()):
        return []
    return [f"partition {name}: {problem}" for name, said in problems.items() for problem in said]


def _asked(component: Component, config: RunConfig, site: SiteConfig) -> tuple[str, str]:
    options = site.options(component.hardware)
    return config.job.account or options.account, config.job.qos or options.qos


def _partition(own: Record, component: Component, minutes: int, asked: tuple[str, str]) -> Iterator[str]:
    account, qos = asked
    if own.get("State", "UP") != "UP":
        yield f"is {own['State']}; wait, or use another partition for class {component.hardware}"
    limit_s = seconds(_time(own.get("MaxTime", "")))
    if minutes * 60 > limit_s:
        at_most = f"{limit_s // 60:g}"
        yield f"jobs may take {at_most} min, this one requests {minutes}; set job.time_minutes={at_most}"
    num_nodes = len(component.nodes)
    for key in ("MaxNodes", "TotalNodes"):
        if own.get(key, "").isdigit() and num_nodes > int(own[key]):
            yield f"a job may have {own[key]} nodes, this one needs {num_nodes}; request fewer processes"
    if os.getuid() != 0:  # root may use any partition
        yield from _allowed("group", own.get("AllowGroups", ""), "", own_groups())
    for what, value in (("account", account), ("QOS", qos)):
        allowed, denied = own.get(f"Allow{_key(what)}", ""), own.get(f"Deny{_key(what)}", "")
        if value:
            yield from _allowed(what, allowed, denied, {value})


def _key(what: str) -> str:
    return "Accounts" if what == "account" else "Qos"


def _allowed(what: str, allowed: str, denied: str, mine: set[str]) -> Iterator[str]:
    shown = ", ".join(sorted(mine))
    if allowed not in _ANY and not mine & set(allowed.split(",")):
        yield f"is open only to {what} {allowed}, you are in {shown}; ask for access, or use another partition"
    if denied not in _ANY and mine & set(denied.split(",")):
        yield f"is closed to {what} {shown}; use another {what} (job.{what.lower()}=...) or another partition"


def _time(text: str) -> str:
    """`scontrol` prints UNLIMITED or 1-00:00:00."""
    return text if ":" in text else "UNLIMITED"


# --- accounting --------------------------------------------------------------------------------


def _accounting(slurm: Slurm, plan: Plan, config: RunConfig, site: SiteConfig) -> tuple[list[str], list[str]]:
    """Checks associations and QOS, if the cluster enforces them and lets the user see them. Returns what is refused,
    and what the run would only wait for."""
    settings = slurm.settings()
    enforced = settings.get("AccountingStorageEnforce", "none")
    if "associations" not in enforced and "limits" not in enforced and "qos" not in enforced:
        return [], []
    try:
        limits = Limits.read(slurm, getpass.getuser(), settings.get("ClusterName", ""))
    except SlurmError:
        return [], []  # not visible; Slurm checks them when it tests the script
    found: list[str] = []
    notes: list[str] = []
    for component in plan.components:
        account, qos = _asked(component, config, site)
        association = limits.association(account, component.partition)
        if association is None:
            name = f"account {account}" if account else "any account"
            listed = ", ".join(limits.accounts) or "none"
            where = f"partition {component.partition}"
            found.append(f"{where}: you have no association with {name} (yours: {listed}); set job.account=...")
            continue
        qos = qos or association["DefaultQOS"]
        known = [name for name in association["QOS"].split(",") if name]
        if qos and known and qos not in known:
            where = f"partition {component.partition}"
            found.append(f"{where}: you may not use QOS {qos} (yours: {', '.join(known)}); set job.qos=...")
            continue
        found += exceeded(limits, association, qos, component, plan, site)
        notes += waits(limits, association, qos, plan, site)
    return found, notes
