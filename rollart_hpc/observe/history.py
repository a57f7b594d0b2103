"""What a report needs of metrics.jsonl, in constant memory. Owns how a long run is shortened.

The file is read from its end: a step survives if no later step has its version or an older one. Sums and peaks are over
all surviving steps; of a long run, only every 2nd, 4th, ... step is kept for the charts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollart_hpc.observe import metrics
from rollart_hpc.observe.phases import Phase, start_phases
from rollart_hpc.vocabulary import EventKind, LineKind

MAX_STEPS = 2000
MAX_VALIDATIONS = 1000  # of all tasks
MAX_EVENTS = 200
_BLOCK_BYTES = 1 << 20

Line = dict[str, Any]


@dataclass
class History:
    steps: list[Line] = field(default_factory=list)  # oldest first, like all lists here
    stride: int = 1  # every stride-th step is in `steps`
    num_steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    kv_peaks: dict[str, float] = field(default_factory=dict)
    validations: list[Line] = field(default_factory=list)
    events: list[Line] = field(default_factory=list)  # the newest
    num_events: int = 0
    losses: list[Line] = field(default_factory=list)  # the newest events about lost processes
    phases: list[Phase] = field(default_factory=list)


def read_history(path: Path) -> History:
    history = History()
    reader = _Backwards(history)
    for line in backwards(path):
        reader.see(line)
    reader.finish()
    history.phases = start_phases(metrics.lines(path))
    return history


def backwards(path: Path) -> Iterator[Line]:
    """Complete lines from the last to the first."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        at, rest = file.seek(0, os.SEEK_END), b""
        while at > 0:
            size = min(_BLOCK_BYTES, at)
            at -= size
            file.seek(at)
            first, *whole = (file.read(size) + rest).split(b"\n")
            for row in reversed(whole):
                yield from metrics.parse(row)[0]
            rest = first
        yield from metrics.parse(rest)[0]


class _Backwards:
    """Sees the lines newest first."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._oldest: float = float("inf")  # version of all steps seen
        self._seen: set[tuple[int, str]] = set()  # validations
        self._first: Line | None = None
        self._firsts: dict[str, Line] = {}  # the oldest validation of each task so far
        self._lasts: dict[str, Line] = {}

    def see(self, line: Line) -> None:
        kind, version = line.get("kind"), line.get("version", 0)
        if kind == LineKind.EVENT:
            self._event(line)
        elif kind == LineKind.STEP and version < self._oldest:
            self._oldest = version
            self._step(line)
        elif kind == LineKind.VALIDATION and version < self._oldest:
            self._validation(line, version)

    def _event(self, line: Line) -> None:
        history = self._history
        history.num_events += 1
        if len(history.events) < MAX_EVENTS:
            history.events.append(line)
        if line.get("what") == EventKind.WORKER_LOST and len(history.losses) < MAX_EVENTS:
            history.losses.append(line)

    def _step(self, line: Line) -> None:
        history = self._history
        history.tokens += line.get("tokens", 0)
        history.seconds += line.get("step_s", 0.0)
        for pool, share in line.get("kv_used", {}).items():
            history.kv_peaks[pool] = max(share, history.kv_peaks.get(pool, 0.0))
        if history.num_steps % history.stride == 0:
            history.steps.append(line)
        history.num_steps += 1
        self._first = line
        if len(history.steps) > MAX_STEPS:
            history.steps = history.steps[::2]
            history.stride *= 2

    def _validation(self, line: Line, version: int) -> None:
        """Only the first and the last of each task keep the scores of each seed."""
        history, task = self._history, line.get("task", "")
        if (version, task) in self._seen:
            return
        self._seen.add((version, task))
        older = self._firsts.get(task)
        if older is not None and older is not self._lasts.get(task):
            older.pop("each", None)
        self._firsts[task] = line
        self._lasts.setdefault(task, line)
        history.validations.append(line)
        if len(history.validations) > MAX_VALIDATIONS:
            ends = [*self._lasts.values(), *self._firsts.values()]
            history.validations = [
                each
                for index, each in enumerate(history.validations)
                if index % 2 == 0 or any(each is end for end in ends)
            ]

    def finish(self) -> None:
        history = self._history
        if self._first is not None and history.steps[-1] is not self._first:
            history.steps.append(self._first)
        for each in (history.steps, history.validations, history.events, history.losses):
            each.reverse()
