"""Progress of a run: one updating line on a terminal, one line per step elsewhere. Reads files and writes none."""

from __future__ import annotations

import shutil
import sys
from collections import deque
from collections.abc import Collection
from types import TracebackType
from typing import Any, TextIO

from rollart_hpc.observe import metrics
from rollart_hpc.observe.sections import duration
from rollart_hpc.observe.status import Status, TaskStatus
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import EventKind, LineKind

BAR = 10  # characters
RECENT_STEPS = 20
CLEAR = "\r\x1b[2K"
WARNINGS = {
    EventKind.TASK_FAILED: "task {name} failed for the first time",
    EventKind.TASK_QUARANTINED: "task {name} is quarantined",
    EventKind.TASK_RETURNED: "task {name} is tried again",
    EventKind.WORKER_ASIDE: "{name} is set aside and gets no work",
    EventKind.WORKER_BACK: "{name} gets work again",
    EventKind.AFFINITY: "task {name} has other pools",
    EventKind.UPDATE_SKIPPED: "the update of {name} was skipped",
}


class LiveScreen:
    """The supervisor's `Screen`: `say` for events, `show` once a second with the status."""

    def __init__(self, run: RunDir, quiet: bool = False, out: TextIO | None = None) -> None:
        self._run, self._quiet = run, quiet
        self._out = out or sys.stderr
        self._is_terminal = self._out.isatty()
        self._records = Follower(run)
        self._success: dict[str, float] = {}  # of the newest step, by task
        self._steps_s: deque[float] = deque(maxlen=RECENT_STEPS)
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

    def show(self, status: Status) -> None:
        if self._quiet:
            return
        for record in self._records.new():
            is_step = record.get("kind") == LineKind.STEP
            if is_step:
                self._success = record.get("success", {})
                self._steps_s.append(float(record.get("step_s", 0.0)))
            line = progress_line(record, status)
            if line and not (is_step and self._is_terminal):
                self._print(line)
        if self._is_terminal:
            self._draw(f"{progress_bar(status, self._steps_s)} {status_line(status, self._success)}")

    def _print(self, text: str) -> None:
        start = CLEAR if self._line else ""
        self._out.write(f"{start}{text}\n{self._line}")
        self._out.flush()

    def _draw(self, text: str) -> None:
        self._line = text[: shutil.get_terminal_size().columns - 1]
        self._out.write(f"{CLEAR}{self._line}")
        self._out.flush()


class Follower:
    """Reads the lines added to metrics.jsonl since the last call."""

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
        lines, _ = metrics.parse(complete)  # a full disk may have left a torn line
        return lines


def progress_bar(status: Status, steps_s: Collection[float]) -> str:
    """[#####-----] 3 min 5 s to go. `steps_s`: how long the newest steps took."""
    left = max(0, status.steps - status.step)
    filled = BAR if not left else BAR * status.step // max(1, status.steps)
    bar = f"[{'#' * filled}{'-' * (BAR - filled)}]"
    return f"{bar} {duration(sum(steps_s) / len(steps_s) * left)} to go |" if steps_s and left else bar


def status_line(status: Status, success: dict[str, float] | None = None) -> str:
    """step 12/60 | frozenlake 0.41 (0.12 -> 0.38) | ... | 1234 tok/s | staleness 1/1 | engine 2 env 1 ...

    Per task: success in the newest step, then in the first and the last validation.
    """
    parts = [f"step {status.step}/{status.steps}"]
    if status.validating is not None:
        parts[0] += " (validating)"
    parts += [_task(name, task, (success or {}).get(name)) for name, task in status.tasks.items()]
    parts.append(f"{status.tokens_per_s:.0f} tok/s")
    parts.append(f"staleness {status.staleness.max_trained}/{status.staleness.bound}")
    parts.append(_alive(status))
    return " | ".join(filter(None, parts))


def progress_line(record: dict[str, Any], status: Status) -> str:
    """A line of metrics.jsonl as text; empty if it is not for the user."""
    if record.get("what") == EventKind.SAVE_FAILED:
        return f"warning: the checkpoint of step {record['name']} could not be saved: {record['detail']}"
    if record.get("what") == EventKind.CHECKPOINT_DAMAGED:
        return f"warning: continuing from the checkpoint of step {record['name']}: {record['detail']}"
    if record.get("what") in WARNINGS:
        return f"warning: {WARNINGS[record['what']].format(name=record['name'])}: {record['detail']}"
    if record.get("kind") == LineKind.VALIDATION:
        return validation_line(record)
    return step_line(record, status) if record.get("kind") == LineKind.STEP else ""


def step_line(record: dict[str, Any], status: Status) -> str:
    scores = ", ".join(f"{name} {value:.2f}" for name, value in record.get("success", {}).items())
    stale = max((int(k) for k in record.get("staleness", {})), default=0)
    return (
        f"step {record['version']}/{status.steps} in {record['step_s']:.1f} s | {scores} | "
        f"{record['tokens_per_s']:.0f} tok/s | staleness {stale}/{status.staleness.bound} | {_alive(status)}"
    )


def validation_line(record: dict[str, Any]) -> str:
    start = f"validation of version {record['version']}: {record['task']}"
    if record["success"] is None:
        return f"{start} has no score: all {record['failed']} plays failed"
    failed = f", {record['failed']} more failed" if record.get("failed") else ""
    return f"{start} success {record['success']:.3f} over {record['plays']} plays{failed}"


def summary(status: Status) -> list[str]:
    """Printed when a run ends: each task's success in the first and the last validation."""
    lines = [f"{status.state} after {status.step} of {status.steps} steps"]
    for name, task in status.tasks.items():
        if task.score_first is not None:
            lines.append(f"  {name}: success {_scores(task, 3)}")
    return lines + [f"  {line}" for line in quarantined(status)]


def quarantined(status: Status) -> list[str]:
    bad = [(name, task) for name, task in status.tasks.items() if task.quarantined]
    return [f"{name} is quarantined: {task.quarantine_reason}" for name, task in bad]


def _task(name: str, task: TaskStatus, success: float | None) -> str:
    if task.quarantined:
        return f"{name} quarantined"
    now = "" if success is None else f" {success:.2f}"
    return f"{name}{now}" if task.score_first is None else f"{name}{now} ({_scores(task, 2)})"


def _scores(task: TaskStatus, digits: int) -> str:
    """The score of the first validation, and of the last if there was more than one."""
    first, last = (f"{score or 0.0:.{digits}f}" for score in (task.score_first, task.score_last))
    return f"{first} -> {last}" if task.validations > 1 else first


def _alive(status: Status) -> str:
    """Live workers by role; empty if there are none, e.g. after the run."""
    alive = {role: workers.alive for role, workers in status.workers.items() if role != "supervisor"}
    return " ".join(f"{role} {count}" for role, count in alive.items()) if any(alive.values()) else ""
