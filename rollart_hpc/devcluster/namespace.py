"""The namespaces of a cluster: killing their holder ends every daemon and every job process in them.

Starts, enters and ends them. The pid namespace catches processes that Slurm leaves behind when its daemons are killed.
The mount namespace gives the cluster its own users and paths (`users.py`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rollart_hpc.errors import SiteError
from rollart_hpc.files import read_json, write_json

# The first process of the namespace inherits orphans. It ignores SIGCHLD, so the kernel reaps them.
_FIRST = ("env", "--ignore-signal=CHLD", "sleep", "infinity")
_LIMIT_S = 30.0


@dataclass(frozen=True)
class Holder:
    """The process whose death ends the namespaces. The inode tells it from a later process with the same pid."""

    pid: int
    inode: int

    @property
    def is_alive(self) -> bool:
        return _inode(self.pid) == self.inode

    def enter(self, command: Sequence[str], *, user: str = "", directory: Path = Path("/")) -> list[str]:
        """The command that runs `command` inside."""
        spaces = f"/proc/{self.pid}/ns"
        start = ["nsenter", f"--mount={spaces}/mnt", f"--pid={spaces}/pid_for_children", "--"]
        change = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "--inh-caps=-all"] if user else []
        return [*start, *change, "env", f"--chdir={directory}", *command]

    def end(self) -> None:
        """Kill everything inside, and wait until it is gone."""
        first = _children(self.pid)
        with suppress(ProcessLookupError):
            if self.is_alive:
                os.kill(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + _LIMIT_S
        while self.is_alive or any(_is_first(pid) and not _is_dead(pid) for pid in first):
            with suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)  # if it is ours
            if time.monotonic() > deadline:
                raise SiteError(f"process {self.pid} and its namespaces did not end", "find out why with ps, or reboot")
            time.sleep(0.01)


def start_holder(record: Path) -> Holder:
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", *_FIRST]
    null = subprocess.DEVNULL
    process = subprocess.Popen(
        command, stdin=null, stdout=null, stderr=subprocess.PIPE, start_new_session=True, cwd="/", text=True
    )
    deadline = time.monotonic() + _LIMIT_S
    while not any(_is_first(pid) for pid in _children(process.pid)):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            said = process.communicate()[1].strip() or "no answer"
            raise SiteError(
                f"this machine does not allow namespaces: {said}", "a container needs the capability SYS_ADMIN"
            )
        time.sleep(0.005)
    holder = Holder(process.pid, _inode(process.pid))
    write_json(record, {"pid": holder.pid, "inode": holder.inode})
    return holder


def read_holder(record: Path) -> Holder | None:
    """The recorded holder; None if there is none, or it has ended."""
    found = read_json(record)
    holder = Holder(found["pid"], found["inode"]) if found else None
    return holder if holder and holder.is_alive else None


def _inode(pid: int) -> int:
    with suppress(OSError):
        return os.stat(f"/proc/{pid}/ns/pid_for_children").st_ino
    return 0


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _is_dead(pid: int) -> bool:
    """The first process becomes a zombie only after every other process of its namespace is gone."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    return True


def _is_first(pid: int) -> bool:
    """Is this the first process of a namespace, after it has set up its mounts?"""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == "sleep"
    return False
