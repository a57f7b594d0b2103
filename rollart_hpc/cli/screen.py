"""What a user sees of a running run: an updating line on a terminal, a line per step elsewhere. Only reads."""

from __future__ import annotations

import shutil
import sys
from types import TracebackType
from typing import Any, TextIO

from rollart_hpc.observe import metrics
from rollart_hpc.rundir import RunDir

CLEAR = "\r\x1b[2K"
WARNINGS = {"task_failed": "failed for the first time", "task_quarantined": "is quarantined"}


class LiveScreen:
    """The supervisor's `Screen`: `say` for events, `show` once a second with the status."""

    def __init__(self, run: RunDir, quiet: bool = False, out: TextIO | None = None) -> None:
        self._run, self._quiet = run, quiet
        self._out = out or sys.stderr
        self._is_terminal = self._out.isatty()
        self._records = Follower(run)
        self._success: dict[str, float] = {}  # of the newest step, by task
        self._line = ""

    def __enter__(self) -> LiveScreen:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last line of the terminal in place."""
        if self._line:
            self._out.write("\n")
            self._line = ""

    def say(self, text: str) -> None:
        if not self._quiet:
            self._print(text)

    def show(self, status: dict[str, Any]) -> None:
        if self._quiet:
            return
        for record in self._records.new():
            if record.get("what") in WARNINGS:
                self._print(f"warning: task {record['name']} {WARNINGS[record['what']]}: {record['detail']}")
            elif record.get("kind") == "validation":
                self._print(validation_line(record))
            elif record.get("kind") == "step":
                self._success = record.get("success", {})
                if not self._is_terminal:
                    self._print(step_line(record, status))
        if self._is_terminal:
            self._draw(status_line(status, self._success))

    def _print(self, text: str) -> None:
        start = CLEAR if self._line else ""
        self._out.write(f"{start}{text}\n{self._line}")
        self._out.flush()

    def _draw(self, text: str) -> None:
        self._line = text[: shutil.get_terminal_size().columns - 1]
        self._out.write(f"{CLEAR}{self._line}")
        self._out.flush()


class Follower:
    """The lines that were added to metrics.jsonl since the last look."""

    def __init__(self, run: RunDir) -> None:
        self._path = run.metrics
        self._offset = self._path.stat().st_size if self._path.exists() else 0

    def new(self) -> list[dict[str, Any]]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        lines, _ = metrics.parse(complete)  # a disk that was full may have left half a line
        return lines


def status_line(status: dict[str, Any], success: dict[str, float] | None = None) -> str:
    """step 12/60 | frozenlake 0.41 (0.12 -> 0.38) | ... | 1234 tok/s | staleness 1/1 | engine 2 env 1 ...

    A task's figures: success in the newest step, and in the first and the last validation.
    """
    staleness = status.get("staleness", {})
    parts = [f"step {status.get('step', 0)}/{status.get('steps', '?')}"]
    if status.get("validating") is not None:
        parts[0] += " (validating)"
    parts += [_task(name, task, (success or {}).get(name)) for name, task in status.get("tasks", {}).items()]
    parts.append(f"{status.get('tokens_per_s', 0):.0f} tok/s")
    parts.append(f"staleness {staleness.get('max_trained', 0)}/{staleness.get('bound', '?')}")
    parts.append(_alive(status))
    return " | ".join(filter(None, parts))


def step_line(record: dict[str, Any], status: dict[str, Any]) -> str:
    scores = ", ".join(f"{name} {value:.2f}" for name, value in record.get("success", {}).items())
    stale = max((int(k) for k in record.get("staleness", {})), default=0)
    return (
        f"step {record['version']}/{status.get('steps', '?')} in {record['step_s']:.1f} s | {scores} | "
        f"{record['tokens_per_s']:.0f} tok/s | staleness {stale}/{status['staleness']['bound']} | {_alive(status)}"
    )


def validation_line(record: dict[str, Any]) -> str:
    start = f"validation of version {record['version']}: {record['task']}"
    if record["success"] is None:
        return f"{start} has no score, all {record['failed']} plays failed"
    failed = f", {record['failed']} more failed" if record.get("failed") else ""
    return f"{start} succeeds in {record['success']:.3f} of {record['plays']} plays{failed}"


def summary(status: dict[str, Any]) -> list[str]:
    """The end of a run: success of every task in the first and in the last validation."""
    lines = [f"{status.get('state', 'unknown')} after {status.get('step', 0)} of {status.get('steps', '?')} steps"]
    for name, task in status.get("tasks", {}).items():
        if task.get("score_first") is not None:
            lines.append(f"  {name}: success {_scores(task, 3)}")
    return lines + [f"  {line}" for line in quarantined(status)]


def quarantined(status: dict[str, Any]) -> list[str]:
    tasks = status.get("tasks", {}).items()
    return [
        f"{name} is quarantined: {task.get('quarantine_reason')}" for name, task in tasks if task.get("quarantined")
    ]


def _task(name: str, task: dict[str, Any], success: float | None) -> str:
    if task.get("quarantined"):
        return f"{name} quarantined"
    now = "" if success is None else f" {success:.2f}"
    return f"{name}{now}" if task.get("score_first") is None else f"{name}{now} ({_scores(task, 2)})"


def _scores(task: dict[str, Any], digits: int) -> str:
    """Of the first and the last validation, if there was more than one."""
    first, last = (f"{task[key]:.{digits}f}" for key in ("score_first", "score_last"))
    return f"{first} -> {last}" if task.get("validations", 0) > 1 else first


def _alive(status: dict[str, Any]) -> str:
    """Nothing if nobody is, as when the run is over."""
    alive = {role: count["alive"] for role, count in status.get("workers", {}).items() if role != "supervisor"}
    return " ".join(f"{role} {count}" for role, count in alive.items()) if any(alive.values()) else ""
