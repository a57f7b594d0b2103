"""`status`: what the controller wrote down last, and whether anybody is still at work: this machine, or Slurm."""

from __future__ import annotations

import argparse
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from rollart_hpc.cli.screen import quarantined, status_line
from rollart_hpc.config import packaged
from rollart_hpc.config.load import load_site
from rollart_hpc.config.resolved import read_resolved, read_site
from rollart_hpc.errors import RollartError, UserError
from rollart_hpc.files import read_json
from rollart_hpc.flow.policy import policy_of
from rollart_hpc.launch.ownership import RUNNING, read_ownership, supervisor_pid
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.slurm.queue import Queue
from rollart_hpc.launch.slurm.record import BadNode, Ended, GoodNode
from rollart_hpc.launch.slurm.record import read as read_records
from rollart_hpc.launch.slurm.state import job_state
from rollart_hpc.launch.slurm.usage import usage
from rollart_hpc.observe.status import StalenessStatus, Status, TaskStatus, WeightsStatus, WorkerStatus
from rollart_hpc.rundir import RunDir, newest_run_dir, open_run_dir

OVER = ("finished", "drained", "failed", "killed", "cancelled")


def status(args: argparse.Namespace) -> int:
    run = open_run_dir(args.run_dir) if args.run_dir else newest_run_dir(*site_roots())
    current = read_status(run)
    if is_on_cluster(run):
        current["gpu_hours"] = gpu_hours(run, current) if current["state"] in OVER else {}
    if args.json:
        print(json.dumps(current, indent=1))
        return 0
    reason = f": {current['reason']}" if current["reason"] else ""
    print(f"{run.path}\n{current['state']}, attempt {current['attempt']}{reason}")
    print(status_line(current))
    for line in quarantined(current):
        print(line)
    for name, task in current["tasks"].items():
        if task.get("last_error") and not task["quarantined"]:
            print(f"{name} failed last with {task['last_error']}")
    for name, pool in current["pools"].items():
        if pool["kv_tokens"] and current["state"] not in OVER:
            used, tokens = pool["kv_used_tokens"], pool["kv_tokens"]
            print(f"KV of pool {name}: {used} of {tokens} tokens ({used / tokens:.0%}) on {pool['engines']} engines")
    _print_counts("dropped", current["dropped"])
    _print_counts("lost", {role: count["lost"] for role, count in current["workers"].items()})
    for line in job_lines(run, current):
        print(line)
    if current["state"] in ("killed", "failed", "drained", "cancelled"):
        print(f"go on with: rollart-hpc resume {run.path}")
    return 0


def read_status(run: RunDir, queue: Queue | None = None) -> dict[str, Any]:
    """status.json, corrected by what is known of the supervisor. Every key is there from the start.

    A run whose processes were all killed can't write that down: its last status says "running". `queue`: of a run on
    a cluster that is looked at again and again.
    """
    current = _corrected(run, queue)
    current["attempt"] = max(current["attempt"], run.last_attempt())
    if current["state"] in OVER:
        current["validating"] = None
        current["workers"] = {role: {**count, "alive": 0} for role, count in current["workers"].items()}
    return current


def _corrected(run: RunDir, queue: Queue | None) -> dict[str, Any]:
    current: dict[str, Any] = read_json(run.status) or {"attempt": run.last_attempt()}
    defaults = msgspec.to_builtins(Status() if run.status.exists() else _before_the_first(run))
    owner = read_ownership(run)
    if is_on_cluster(run):
        return {
            **defaults,
            **current,
            "run_dir": str(run.path),
            **_on_cluster(run, current, owner, queue or Queue(run)),
        }
    if not owner:
        state = "preparing"
    elif owner["state"] != RUNNING:
        state = owner["state"]
    elif _is_supervised(run) and not owner["procs"]:
        state = "starting" if run.last_attempt() else "preparing"
    elif _is_supervised(run):
        of_now = current.get("attempt", 0) >= min((p["attempt"] for p in owner["procs"].values()), default=0)
        state = current.get("state", "starting") if of_now else "starting"
    else:
        state = "killed"
    reason = current.get("reason") or owner.get("reason", "")
    return {**defaults, **current, "run_dir": str(run.path), "state": state, "reason": reason}


def is_on_cluster(run: RunDir) -> bool:
    """By the site it was made for: there may be no job yet, or no trace of one."""
    return run.site.exists() and read_site(run.site).launcher == "slurm"


def _on_cluster(run: RunDir, current: dict[str, Any], owner: dict[str, Any], queue: Queue) -> dict[str, Any]:
    state, reason, rows = job_state(run, queue)
    if not state:
        attempts = (proc["attempt"] for proc in owner.get("procs", {}).values())
        state = _of_controller(run, current, min(attempts, default=0))
    said = current.get("reason", "") if state == current.get("state") else ""
    return {"state": state, "reason": said or reason, "jobs": msgspec.to_builtins(rows)}


def _of_controller(run: RunDir, current: dict[str, Any], oldest_attempt: int) -> str:
    """What it says, if it is the one of now."""
    if not oldest_attempt:
        return "starting" if run.last_attempt() else "preparing"
    return str(current.get("state", "starting")) if current.get("attempt", 0) >= oldest_attempt else "starting"


def gpu_hours(run: RunDir, current: dict[str, Any]) -> dict[str, Any]:
    plan = make_plan(read_resolved(run.config), read_site(run.site))
    found: dict[str, Any] = msgspec.to_builtins(usage(run, plan, current["time_s"]))
    return found


def job_lines(run: RunDir, current: dict[str, Any]) -> list[str]:
    """Of a run on a cluster: its components, its earlier starts, and what it used."""
    lines = [
        f"job {row['job']}: {row['state'].lower()} in partition {row['partition']}"
        + (f" on {row['nodes']}" if row["nodes"] else "")
        + (f", {row['left']} left" if row["state"] == "RUNNING" else "")
        + (f": {row['reason']}" if row["reason"] else "")
        for row in current.get("jobs", ())
    ]
    for record in read_records(run):
        if isinstance(record, Ended):
            why = f": {record.reason}" if record.reason else ""
            lines.append(f"job {record.job}, start {record.restart + 1}: {record.state}{why}")
        elif isinstance(record, BadNode):
            lines.append(f"node {record.host} is left out: {record.reason}")
        elif isinstance(record, GoodNode):
            lines.append(f"node {record.host} is fine again and may be used")
    for name, used in current.get("gpu_hours", {}).items():
        lines.append(f"GPU-hours on {name}: {used['given']:.3f}, of which idle {used['idle']:.3f}")
    return lines


def site_roots() -> list[Path]:
    """Where the user's sites keep their runs."""
    roots = []
    for name in packaged.user_names("sites"):
        with suppress(RollartError):
            root = load_site(name).run_root
            roots += [Path(os.path.expandvars(root)).expanduser()] if root else []
    return roots


def _before_the_first(run: RunDir) -> Status:
    """What the configuration tells of a run whose controller has not written a status yet."""
    if not run.config.exists():
        return Status()  # it was only just begun
    config = read_resolved(run.config)
    return Status(
        name=config.name,
        mode=config.mode,
        steps=config.steps,
        tasks={name: TaskStatus() for name in config.tasks},
        staleness=StalenessStatus(bound=policy_of(config).alpha),
        workers={proc.role: WorkerStatus() for proc in make_plan(config).workers},
        weights=WeightsStatus(transport=config.weights.transport),
    )


def _is_supervised(run: RunDir) -> bool:
    try:
        return supervisor_pid(run) is not None
    except UserError:
        return True  # on another host, which alone can tell


def _print_counts(title: str, counts: dict[str, int]) -> None:
    listed = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
    if listed:
        print(f"{title}: {listed}")
