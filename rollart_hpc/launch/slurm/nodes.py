"""Nodes that the jobs of a run exclude: those that failed it and that Slurm still considers unusable.

Owns that decision and its lines in jobs.jsonl. Callers check before they submit or requeue a job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rollart_hpc.config.site import SiteConfig
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError
from rollart_hpc.rundir import RunDir

_BAD_STATES = ("down", "drain", "fail", "unknown")


def note_nodes(run: RunDir, slurm: Slurm, hosts: Iterable[str], say: Callable[[str], None]) -> bool:
    """Record which of these nodes, and of the excluded ones, are bad now. Returns whether there are new bad ones."""
    left_out = {*record.bad_hosts(record.read(run))}
    try:
        found = bad_nodes(slurm, {*hosts} | left_out)
    except SlurmError as error:
        say(f"the state of the nodes is unknown: {error.what}")
        return False
    for host in sorted(found.keys() - left_out):
        say(f"node {host} is bad and excluded until it is repaired: {found[host]}")
        record.add(run, record.BadNode(host, found[host]))
    for host in sorted(left_out - found.keys()):
        say(f"node {host} is usable again")
        record.add(run, record.GoodNode(host))
    return bool(found.keys() - left_out)


def bad_nodes(slurm: Slurm, hosts: Iterable[str]) -> dict[str, str]:
    """Which of these nodes Slurm considers unusable, with the reason."""
    listed = ",".join(sorted(set(hosts)))
    if not listed:
        return {}
    fields = {"host": "%N", "state": "%T", "reason": "%E"}
    rows = slurm.table("sinfo", fields, "--Node", "--nodes", listed)
    found = [row for row in rows if row["state"].lower().startswith(_BAD_STATES)]
    return {row["host"]: f"{row['state']}: {row['reason']}" for row in found}


def excluded(run: RunDir, site: SiteConfig) -> list[str] | None:
    """Nodes to exclude from all components of a requeued job; None if the run has never found a bad node."""
    records = record.read(run)
    if not any(isinstance(line, record.BadNode) for line in records):
        return None
    always = [site.options(name).exclude for name in site.classes if site.options(name).exclude]
    return sorted({*always, *record.bad_hosts(records)})
