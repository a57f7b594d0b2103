"""supervisor.json: who supervises a run, with which processes, and how it ended. Owns that file.

A pid alone may be anybody's by now: with the start time of the process it names one process of one host.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollart_hpc.errors import UserError
from rollart_hpc.files import read_json, write_json
from rollart_hpc.launch.process import Child
from rollart_hpc.rundir import RunDir

RUNNING = "running"


def write_ownership(
    run: RunDir, attempt: int, children: Iterable[Child], state: str = RUNNING, reason: str = ""
) -> None:
    procs = {c.name: {"pid": c.pid, "incarnation": c.order.incarnation, "attempt": c.order.attempt} for c in children}
    owner = {"pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "host": socket.gethostname()}
    write_json(run.supervisor, {**owner, "state": state, "reason": reason, "attempt": attempt, "procs": procs})


def read_ownership(run: RunDir) -> dict[str, Any]:
    """Empty if the run was never supervised."""
    return read_json(run.supervisor) or {}


def start_ticks(pid: int) -> int:
    """When the process began, in clock ticks since boot; 0 if there is none."""
    with suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return int(stat.rsplit(")", 1)[1].split()[19])  # after "pid (name)": field 22 of proc(5)
    return 0


def supervisor_pid(run: RunDir) -> int | None:
    """The pid of the live supervisor of this run; None if there is none. Only its own host can tell."""
    owner = read_ownership(run)
    if not owner or owner.get("state") != RUNNING:
        return None
    if owner.get("host") != socket.gethostname():
        raise UserError(
            f"{run.path} is supervised on host {owner.get('host')}", "run this command there, or end that run first"
        )
    pid = int(owner["pid"])
    return pid if start_ticks(pid) == owner["start_ticks"] != 0 else None


def ask_to_end(run: RunDir) -> int:
    """Ask the supervisor to save a checkpoint and end the run. Returns its pid."""
    pid = supervisor_pid(run)
    if pid is None:
        raise UserError(f"{run.path} is not running", f"see how it ended: rollart-hpc status {run.path}")
    os.kill(pid, signal.SIGTERM)
    return pid
