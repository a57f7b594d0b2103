"""All spans of a run on one clock. Aligns the trace files of processes, nodes and attempts; draws nothing.

During the life of one controller, every span is moved to that controller's clock by the offset that its process
measured. Different controllers are shown one after the other, because the time between them is unknown.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from rollart_hpc.observe.trace import category
from rollart_hpc.rundir import trace_file

log = logging.getLogger(__name__)

GAP_S = 1.0  # shown between two controllers
CONTROLLER = "controller"
_ROLE_ORDER = ("controller", "trainer", "engine", "relay", "env", "reward")


class Span(msgspec.Struct, gc=False):
    """A long run has millions of these, so it is a plain struct that is changed in place."""

    process: str
    name: str
    start_s: float
    end_s: float
    args: dict[str, Any]
    category: str


class _Row(msgspec.Struct, gc=False):
    """Any line of a trace file; see `observe.trace`."""

    process: str = ""
    at: float | None = None
    offset: float = 0.0
    name: str = ""
    start: float = 0.0
    end: float = 0.0
    args: dict[str, Any] = {}
    level: int | None = None


_decoder = msgspec.json.Decoder(_Row)


def read_run(trace_dirs: Iterable[Path]) -> list[Span]:
    """Spans of all attempts, sorted by start. The first one starts at 0. For small runs: it holds them all."""
    spans: list[Span] = []
    for life in lives(trace_dirs):
        found = [span for path in life for span in read_file(path)]
        if not found:
            continue
        begin_s = min(span.start_s for span in found)
        shift_s = (max(span.end_s for span in spans) + GAP_S if spans else 0.0) - begin_s
        for span in found:
            span.start_s += shift_s
            span.end_s += shift_s
        spans += found
    return sorted(spans, key=lambda span: span.start_s)


def lives(trace_dirs: Iterable[Path]) -> list[list[Path]]:
    """Trace files by controller. An attempt without a controller restored only the trainer, so it belongs to the
    controller before it."""
    found: list[list[Path]] = []
    for directory in sorted(trace_dirs, key=_natural):
        paths = sorted(directory.glob("*.jsonl"))
        if found and not trace_file(directory, CONTROLLER).exists():
            found[-1] += paths
        else:
            found.append(paths)
    return found


def _natural(path: Path) -> list[int | str]:
    """Sort key that puts attempt_10 after attempt_9."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(path))]


def read_file(path: Path) -> Iterator[Span]:
    """Spans of one process on its controller's clock. Skips torn lines. Reads the file twice and keeps only offsets."""
    offsets = _offsets(path)
    start, process = -1, path.stem
    for row in _rows(path):
        if row.process or start < 0:
            start, process = start + 1, row.process or path.stem
        if row.name:
            times, shifts = offsets[start]
            index = max(0, bisect_right(times, row.start) - 1)  # before the first measurement, use the first one
            shift_s = shifts[index] if shifts else 0.0
            end_s = max(row.start, row.end) + shift_s
            yield Span(process, row.name, row.start + shift_s, end_s, row.args, category(row.name))


def _offsets(path: Path) -> list[tuple[list[float], list[float]]]:
    """Times and offsets of each start of the process. A restarted process measures its offset again."""
    starts: list[tuple[list[float], list[float]]] = []
    num_torn = [0]
    for row in _rows(path, num_torn):
        if row.process or not starts:
            starts.append(([], []))
        if row.at is not None:
            starts[-1][0].append(row.at)
            starts[-1][1].append(row.offset)
    if num_torn[0]:
        log.warning("%s: skipped %d torn lines", path, num_torn[0])
    return starts


def _rows(path: Path, num_torn: list[int] | None = None) -> Iterator[_Row]:
    with path.open("rb") as file:
        for line in file:
            try:
                row = _decoder.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError):
                if num_torn is not None:
                    num_torn[0] += 1
                continue
            if row.level is None:
                yield row


def by_process(spans: Iterable[Span]) -> dict[str, list[Span]]:
    """Lanes in the order in which they are shown: by role, then by name."""
    lanes: dict[str, list[Span]] = {}
    for span in spans:
        lanes.setdefault(span.process, []).append(span)
    return {process: lanes[process] for process in sorted(lanes, key=lane_order)}


def lane_order(process: str) -> tuple[int, list[int | str]]:
    role = process.partition("-")[0]
    order = _ROLE_ORDER.index(role) if role in _ROLE_ORDER else len(_ROLE_ORDER)
    return order, _natural(Path(process))


def rows_of(spans: Iterable[Span]) -> Iterator[tuple[int, Span]]:
    """(row, span), such that spans of a row never overlap partly. A span may contain only spans of other categories."""
    stacks: list[list[Span]] = []
    for span in sorted(spans, key=lambda s: (s.start_s, -s.end_s)):
        for row, stack in enumerate(stacks):
            while stack and stack[-1].end_s <= span.start_s:
                stack.pop()
            if not stack or (span.end_s <= stack[-1].end_s and span.category != stack[-1].category):
                stack.append(span)
                yield row, span
                break
        else:
            stacks.append([span])
            yield len(stacks) - 1, span
