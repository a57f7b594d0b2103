"""Messages about processes that ended: the exit code, the error in the log, what the user can do."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

from rollart_hpc.errors import RollartError, SiteError, UserError, command_line
from rollart_hpc.launch.process import Child
from rollart_hpc.processes.logs import LOG_LINE, LOG_TIME_FORMAT
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import ExitCode

_TAIL_BYTES = 64 << 10
_FULL_BYTES = 64 << 10


def describe(code: int) -> str:
    """An exit code as text; negative codes are signals."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"


def describe_end(child: Child, code: int) -> str:
    """With what its agent knows: killed by SIGKILL (out of memory)."""
    return f"{describe(code)} ({child.reason})" if child.reason else describe(code)


def reason_of(child: Child, code: int, reported: str = "") -> RollartError:
    """The reason that the process itself gave. `reported`: a reason it gave outside its log."""
    said = last_error(child.log)
    kind = UserError if code == ExitCode.USER else SiteError
    if reported and not said:
        return kind(f"{child.name}: {reported}", f"read the logs in {child.log.parent}")
    if not said and shutil.disk_usage(child.log.parent).free < _FULL_BYTES:
        return SiteError(
            f"{child.name} ended and could not write its log: no space left on the disk of {child.log.parent}",
            "free some space, then resume the run",
        )
    said = said or quoted_tail(child.log)
    return kind(f"{child.name}: {said}", f"read its log: {child.log}")


def gave_up(child: Child, code: int, limit: str, run: RunDir) -> SiteError:
    return SiteError(
        f"{child.name} keeps failing ({describe_end(child, code)}) and has used up {limit}; {quoted_tail(child.log)}",
        f"find the cause, then: {command_line('resume', run.path)}",
    )


def tail(path: Path, num_lines: int = 20) -> list[str]:
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-num_lines:]
    except OSError:
        return []


def last_error(path: Path) -> str:
    """The last message logged as ERROR with its continuation lines; empty if there is none."""
    found: list[str] = []
    taking = False
    for line in tail(path, 500):
        match = LOG_LINE.match(line)
        if match:
            taking = match["level"] in ("ERROR", "CRITICAL")
            if taking:
                found = [match["text"]]
        elif taking:
            found.append(line)
    return "\n".join(found)


def quoted_tail(path: Path, num_lines: int = 20) -> str:
    lines = tail(path, num_lines)
    shown = "\n".join(f"  | {line}" for line in lines) if lines else "  | (empty)"
    return f"the end of {path}:\n{shown}"


def log_line(name: str, text: str) -> str:
    """A line of the supervisor's log, in the same format as all logs."""
    now = time.time()
    return f"{time.strftime(LOG_TIME_FORMAT, time.localtime(now))}.{int(now % 1 * 1000):03d} INFO {name}: {text}"
