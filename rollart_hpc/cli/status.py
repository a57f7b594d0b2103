"""`status`: prints the status of a run as text or JSON. Changes nothing."""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from rollart_hpc.cli.screen import quarantined, status_line
from rollart_hpc.config import packaged
from rollart_hpc.config.load import load_site
from rollart_hpc.errors import RollartError
from rollart_hpc.launch.slurm.queue import RUNNING
from rollart_hpc.launch.slurm.record import AvoidedNodes, BadNode, Ended, GoodNode
from rollart_hpc.launch.slurm.record import read as read_records
from rollart_hpc.launch.status import RunStatus, gpu_hours, is_on_cluster, run_status
from rollart_hpc.rundir import RunDir, newest_run_dir, open_run_dir


def status(args: argparse.Namespace) -> int:
    run = open_run_dir(args.run_dir) if args.run_dir else newest_run_dir(*site_roots())
    current = run_status(run)
    if is_on_cluster(run) and current.state.is_over:
        current.gpu_hours = gpu_hours(run, current)
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(current), indent=1).decode())
        return 0
    reason = f": {current.reason}" if current.reason else ""
    print(f"{run.path}\n{current.state}, attempt {current.attempt}{reason}")
    print(status_line(current))
    for line in quarantined(current):
        print(line)
    for name, task in current.tasks.items():
        if task.last_error and not task.quarantined:
            print(f"last failure of {name}: {task.last_error}")
    for name, pool in current.pools.items():
        if pool.kv_tokens and not current.state.is_over:
            used, tokens = pool.kv_used_tokens, pool.kv_tokens
            print(f"KV use of pool {name}: {used} of {tokens} tokens ({used / tokens:.0%}), {pool.engines} engines")
    _print_counts("dropped", current.dropped)
    _print_counts("lost", {role: workers.lost for role, workers in current.workers.items()})
    for line in job_lines(run, current):
        print(line)
    if current.state.can_resume:
        print(f"resume it with: rollart-hpc resume {run.path}")
    return 0


def job_lines(run: RunDir, current: RunStatus) -> list[str]:
    """For a run on a cluster: its components, earlier starts, excluded nodes and GPU-hours."""
    lines = [
        f"job {row.job}{f' ({row.unit})' if row.unit else ''}: {row.state.lower()} in partition {row.partition}"
        + (f" on {row.nodes}" if row.nodes else "")
        + (f", {row.left} left" if row.state == RUNNING else "")
        + (f": {row.reason}" if row.reason else "")
        for row in current.jobs
    ]
    for record in read_records(run):
        if isinstance(record, Ended):
            why = f": {record.reason}" if record.reason else ""
            lines.append(f"job {record.job}, start {record.restart + 1}: {record.state}{why}")
        elif isinstance(record, BadNode):
            lines.append(f"node {record.host} is bad: {record.reason}")
        elif isinstance(record, GoodNode):
            lines.append(f"node {record.host} is usable again")
        elif isinstance(record, AvoidedNodes):
            lines.append(f"nodes avoided from then on: {', '.join(record.hosts) or 'none'}")
    for name, used in current.gpu_hours.items():
        lines.append(f"GPU-hours on {name}: {used.given:.3f}, {used.idle:.3f} of them idle")
    return lines


def site_roots() -> list[Path]:
    """The run roots of the user's sites."""
    roots = []
    for name in packaged.user_names("sites"):
        with suppress(RollartError):
            root = load_site(name).run_root
            roots += [Path(os.path.expandvars(root)).expanduser()] if root else []
    return roots


def _print_counts(title: str, counts: dict[str, int]) -> None:
    listed = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
    if listed:
        print(f"{title}: {listed}")
