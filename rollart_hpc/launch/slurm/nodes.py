"""Nodes that failed a run: which of them Slurm can't use now, and which of the others the run's jobs avoid.

Slurm itself allocates no node that is down or drained. Excluding such a node as well would only keep the job waiting
after its repair, because nobody changes the list of a pending job. So a job avoids only nodes that Slurm considers fine
and that failed the run more than once, and only while enough other nodes are usable.

Owns these decisions and their lines in jobs.jsonl. Callers check before they submit or requeue a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from rollart_hpc.config.site import SiteConfig
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError
from rollart_hpc.rundir import RunDir

MANY = 2  # failures of a node after which it is avoided
_BAD_STATES = ("down", "drain", "fail", "unknown")
_LOST_STATES = ("down", "fail")  # a node that is drained has not failed anybody


def note_nodes(run: RunDir, slurm: Slurm, hosts: Iterable[str], say: Callable[[str], None]) -> bool:
    """Record which of these nodes, and of those known as bad, are bad now. Returns whether there are new bad ones."""
    known = {*record.bad_hosts(record.read(run))}
    asked = ",".join(sorted({*hosts} | known))
    try:
        found = bad_nodes(slurm, "--nodes", asked) if asked else {}
        for host in sorted(found.keys() - known):
            say(f"node {host} is bad; Slurm does not use it until it is repaired: {found[host]}")
            record.add(run, record.BadNode(host, found[host]))
        for host in sorted(known - found.keys()):
            say(f"node {host} is usable again")
            record.add(run, record.GoodNode(host))
        _note_avoided(run, slurm, say)
    except SlurmError as error:
        say(f"the state of the nodes is unknown: {error.what}")
        return False
    return bool(found.keys() - known)


def bad_nodes(slurm: Slurm, *choice: str) -> dict[str, str]:
    """Which nodes of the choice (options of sinfo) Slurm considers unusable, with the reason."""
    return {host: state for host, state in _states(slurm, *choice).items() if state.startswith(_BAD_STATES)}


def _states(slurm: Slurm, *choice: str) -> dict[str, str]:
    fields = {"host": "%N", "state": "%T", "reason": "%E"}
    rows = slurm.table("sinfo", fields, "--Node", *choice)
    return {row["host"]: f"{row['state'].lower()}: {row['reason']}" for row in rows}


def _note_avoided(run: RunDir, slurm: Slurm, say: Callable[[str], None]) -> None:
    records = record.read(run)
    before = record.avoided_hosts(records)
    now = sorted(_avoidable(slurm, records))
    if now == before:
        return
    for host in sorted({*now} - {*before}):
        say(f"node {host} is avoided: it failed this run {MANY} times or more")
    for host in sorted({*before} - {*now}):
        say(f"node {host} is no longer avoided")
    record.add(run, record.AvoidedNodes(now))


def _avoidable(slurm: Slurm, records: list[record.Record]) -> Iterator[str]:
    """Nodes that failed too often and without which each component still finds enough nodes in its partition."""
    lost = (line for line in records if isinstance(line, record.BadNode) and line.reason.startswith(_LOST_STATES))
    times = Counter(line.host for line in lost)
    suspects = {host for host, count in times.items() if count >= MANY}
    started = [line for line in records if isinstance(line, record.Began)][-1:]
    for part in (part for line in started if suspects for part in line.parts):
        states = _states(slurm, "--partition", part.partition)
        usable = {host for host, state in states.items() if not state.startswith(_BAD_STATES)}
        if len(usable - suspects) >= len(part.hosts):
            yield from usable & suspects


def excluded(run: RunDir, site: SiteConfig) -> list[str] | None:
    """Nodes to exclude from all components of a requeued job; None if no node has ever failed the run."""
    records = record.read(run)
    if not any(isinstance(line, record.BadNode) for line in records):
        return None
    always = [site.options(name).exclude for name in site.classes if site.options(name).exclude]
    return sorted({*always, *record.avoided_hosts(records)})
