"""Reading the logs of a run's processes: their end, for error messages."""

from __future__ import annotations

import os
from pathlib import Path

from rollart_hpc.config.process import LOG_LINE

_TAIL_BYTES = 64 << 10


def tail(path: Path, num_lines: int = 20) -> list[str]:
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-num_lines:]
    except OSError:
        return []


def last_error(path: Path) -> str:
    """The last message logged as ERROR, with the lines that belong to it; empty if there is none."""
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
