"""supervisor.json: the supervisor of a run, its processes, and how the run ended. Owns that file.

A pid may be reused by another process. Together with the start time it identifies one process on one host.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from rollart_hpc.errors import SiteError, UserError, command_line
from rollart_hpc.files import write_atomic
from rollart_hpc.launch.process import Child
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState


class OwnedProcess(msgspec.Struct, frozen=True):
    pid: int
    incarnation: str
    attempt: int
    host: str = ""  # of the process; empty: that of the supervisor


class Ownership(msgspec.Struct, frozen=True):
    """supervisor.json."""

    pid: int
    start_ticks: int
    host: str
    state: RunState  # RUNNING as soon as preparation starts, then the final state
    reason: str = ""
    attempt: int = 0
    procs: dict[str, OwnedProcess] = {}


def write_ownership(
    run: RunDir, attempt: int, children: Iterable[Child], state: RunState = RunState.RUNNING, reason: str = ""
) -> None:
    procs = {c.name: OwnedProcess(c.pid, c.order.incarnation, c.order.attempt, c.host) for c in children}
    pid = os.getpid()
    owner = Ownership(pid, start_ticks(pid), socket.gethostname(), state, reason, attempt, procs)
    write_atomic(run.supervisor, msgspec.json.format(msgspec.json.encode(owner), indent=1) + b"\n")


def read_ownership(run: RunDir) -> Ownership | None:
    """None if the run has never had a supervisor."""
    try:
        return msgspec.json.decode(run.supervisor.read_bytes(), type=Ownership)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SiteError(f"{run.supervisor} is damaged: {error}", "remove it, then resume the run") from None


def has_finished(run: RunDir) -> bool:
    owner = read_ownership(run)
    return owner is not None and owner.state is RunState.FINISHED


def start_ticks(pid: int) -> int:
    """Start time of the process in clock ticks since boot; 0 if there is no such process."""
    with suppress(OSError, ValueError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text()
        return int(stat.rsplit(")", 1)[1].split()[19])  # after "pid (name)": field 22 of proc(5)
    return 0


def supervisor_pid(run: RunDir) -> int | None:
    """The pid of this run's live supervisor; None if there is none. Works only on the supervisor's host."""
    owner = read_ownership(run)
    if owner is None or owner.state is not RunState.RUNNING:
        return None
    if owner.host != socket.gethostname():
        raise UserError(f"{run.path} is supervised on host {owner.host}", f"run this command there: ssh {owner.host}")
    return owner.pid if start_ticks(owner.pid) == owner.start_ticks != 0 else None


def ask_to_end(run: RunDir) -> int:
    """Ask the supervisor to save a checkpoint and end the run. Returns its pid."""
    pid = supervisor_pid(run)
    if pid is None:
        raise UserError(f"{run.path} is not running", f"see how it ended: {command_line('status', run.path)}")
    os.kill(pid, signal.SIGTERM)
    return pid
