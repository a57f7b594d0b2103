"""`status`: what the controller wrote down last, and whether anybody is still at work."""

from __future__ import annotations

import argparse
import json
from typing import Any

import msgspec

from rollart_hpc.cli.screen import status_line
from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.config.rundir import RunDir, newest_run_dir, open_run_dir
from rollart_hpc.errors import UserError
from rollart_hpc.files import read_json
from rollart_hpc.flow.policy import policy_of
from rollart_hpc.launch.ownership import RUNNING, read_ownership, supervisor_pid
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.observe.status import StalenessStatus, Status, TaskStatus, WeightsStatus, WorkerStatus


def status(args: argparse.Namespace) -> int:
    run = open_run_dir(args.run_dir) if args.run_dir else newest_run_dir()
    current = read_status(run)
    if args.json:
        print(json.dumps(current, indent=1))
        return 0
    reason = f": {current['reason']}" if current["reason"] else ""
    print(f"{run.path}\n{current['state']}{reason}, attempt {current['attempt']}")
    print(status_line(current))
    _print_counts("dropped", current["dropped"])
    _print_counts("lost", {role: count["lost"] for role, count in current["workers"].items()})
    if current["state"] in ("killed", "failed", "drained"):
        print(f"go on with: rollart-hpc resume {run.path}")
    return 0


def read_status(run: RunDir) -> dict[str, Any]:
    """status.json with the state corrected by what is known of the supervisor. Every key is there from the start.

    A run whose processes were all killed can't write that down: its last status says "running".
    """
    current: dict[str, Any] = read_json(run.status) or {"attempt": run.last_attempt()}
    defaults = msgspec.to_builtins(Status() if run.status.exists() else _before_the_first(run))
    owner = read_ownership(run)
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
