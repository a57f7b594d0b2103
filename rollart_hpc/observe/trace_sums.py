"""The traces of a run in constant memory: sums for each lane, and the spans of the last steps. Draws nothing.

Reads the files of at most MAX_LANES processes, evenly chosen from each role, twice: once for the time that the run
covers, once for the sums.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rollart_hpc.observe.charts import make_axis
from rollart_hpc.observe.timeline import GAP_S, Span, lane_order, lives, read_file
from rollart_hpc.observe.trace import CATEGORIES

MAX_LANES = 64
NUM_BINS = 500
CLOSE_UP_STEPS = 3
CLOSE_UP_S = 30.0
MAX_SPANS = 3000
MAX_STEPS = 120  # more can't be told apart
STEP = "step"
_CHUNK = 10_000
_MAX_INTERVALS = 20_000


class Busy:
    """The time that spans cover together. They come roughly in the order of time."""

    def __init__(self) -> None:
        self._starts, self._ends = np.empty(0), np.empty(0)
        self._folded_s = 0.0
        self._first_s, self._last_s = float("inf"), float("-inf")

    def add(self, starts: NDArray[np.float64], ends: NDArray[np.float64]) -> None:
        self._first_s, self._last_s = min(self._first_s, starts.min()), max(self._last_s, ends.max())
        starts, ends = np.concatenate((self._starts, starts)), np.concatenate((self._ends, ends))
        order = starts.argsort()
        starts, reached = starts[order], np.maximum.accumulate(ends[order])
        begins = np.concatenate(([True], starts[1:] > reached[:-1]))
        last = np.concatenate((begins[1:], [True]))
        self._starts, self._ends = starts[begins], reached[last]
        if len(self._starts) > _MAX_INTERVALS:
            half = len(self._starts) // 2
            self._folded_s += float((self._ends[:half] - self._starts[:half]).sum())
            self._starts, self._ends = self._starts[half:], self._ends[half:]

    def seconds(self) -> tuple[float, float]:
        """With at least one running span, and without, between the first span and the last."""
        busy_s = self._folded_s + float((self._ends - self._starts).sum())
        return busy_s, max(0.0, self._last_s - self._first_s - busy_s)


@dataclass
class Lane:
    covered: NDArray[np.float64]  # [category, bin]: average number of running spans
    seconds: dict[str, float] = field(default_factory=dict)  # by category
    busy: Busy = field(default_factory=Busy)


@dataclass
class Trace:
    lanes: dict[str, Lane] = field(default_factory=dict)
    end_s: float = 0.0
    steps: list[Span] = field(default_factory=list)  # none if there are more than MAX_STEPS
    window: tuple[float, float] = (0.0, 0.0)
    close: list[Span] = field(default_factory=list)  # the longest spans in the window
    num_processes: int = 0


def read_trace(trace_dirs: Iterable[Path]) -> Trace:
    found = lives(trace_dirs)
    shown, num_processes = _chosen({path.stem for life in found for path in life})
    lifetimes = [[path for path in life if path.stem in shown] for life in found]
    trace = Trace(num_processes=num_processes)
    shifts, last_steps = _survey(lifetimes, trace)
    trace.window = _window(last_steps, trace.end_s)
    high_s = make_axis([0.0, trace.end_s], 0, 1, zero=True).high
    heap: list[tuple[float, int, Span]] = []
    for life, shift_s in zip(lifetimes, shifts, strict=True):
        for path in life:
            _add(trace, shifted(read_file(path), shift_s), high_s, heap)
    trace.close = [span for _, _, span in heap]
    trace.lanes = {name: trace.lanes[name] for name in sorted(trace.lanes, key=lane_order)}
    return trace


def chosen_files(trace_dirs: Iterable[Path]) -> dict[str, list[tuple[Path, float]]]:
    """The files of each process that is shown, each with the seconds that its life is moved."""
    found = lives(trace_dirs)
    shown, _ = _chosen({path.stem for life in found for path in life})
    lifetimes = [[path for path in life if path.stem in shown] for life in found]
    shifts, _ = _survey(lifetimes, Trace())
    files: dict[str, list[tuple[Path, float]]] = {name: [] for name in sorted(shown, key=lane_order)}
    for life, shift_s in zip(lifetimes, shifts, strict=True):
        for path in life:
            files[path.stem].append((path, shift_s))
    return files


def _chosen(names: set[str]) -> tuple[set[str], int]:
    roles: dict[str, list[str]] = {}
    for name in sorted(names, key=lane_order):
        roles.setdefault(name.partition("-")[0], []).append(name)
    if len(names) <= MAX_LANES:
        return names, len(names)
    share = max(1, MAX_LANES // len(roles))
    return {own[i * len(own) // share] for own in roles.values() for i in range(share)}, len(names)


def _survey(lifetimes: list[list[Path]], trace: Trace) -> tuple[list[float], Sequence[float]]:
    """How far each life is moved, and the ends of the last steps."""
    shifts: list[float] = []
    ends: deque[float] = deque(maxlen=CLOSE_UP_STEPS + 1)
    num_steps = 0
    for life in lifetimes:
        low_s, high_s, steps = float("inf"), float("-inf"), deque[Span](maxlen=MAX_STEPS)
        for span in (span for path in life for span in read_file(path)):
            low_s, high_s = min(low_s, span.start_s), max(high_s, span.end_s)
            if span.name == STEP:
                num_steps += 1
                steps.append(span)
        has_spans = high_s >= low_s
        shift_s = (trace.end_s + GAP_S if trace.end_s else 0.0) - low_s if has_spans else 0.0
        shifts.append(shift_s)
        trace.end_s = high_s + shift_s if has_spans else trace.end_s
        trace.steps += shifted(steps, shift_s)
        ends.extend(sorted(span.end_s for span in steps))
    trace.steps = trace.steps if num_steps <= MAX_STEPS else []
    return shifts, list(ends)


def shifted(spans: Iterable[Span], shift_s: float) -> Iterator[Span]:
    for span in spans:
        span.start_s += shift_s
        span.end_s += shift_s
        yield span


def _window(ends: Sequence[float], end_s: float) -> tuple[float, float]:
    """The time of the last steps; without steps, or if they are long, the last seconds."""
    last_s = ends[-1] if ends else end_s
    first_s = ends[-1 - CLOSE_UP_STEPS] if len(ends) > CLOSE_UP_STEPS else 0.0
    return max(first_s, last_s - CLOSE_UP_S, 0.0), max(last_s, 1e-6)


def _add(trace: Trace, spans: Iterator[Span], high_s: float, heap: list[tuple[float, int, Span]]) -> None:
    start_s, end_s = trace.window
    while chunk := list(islice(spans, _CHUNK)):
        known: dict[str, list[Span]] = {}
        for span in chunk:
            if span.category not in CATEGORIES:
                continue
            known.setdefault(span.process, []).append(span)
            if span.end_s > start_s and span.start_s < end_s:
                entry = span.end_s - span.start_s, id(span), span
                (heapq.heappush if len(heap) < MAX_SPANS else heapq.heappushpop)(heap, entry)
        for process, own in known.items():
            lane = trace.lanes.setdefault(process, Lane(np.zeros((len(CATEGORIES), NUM_BINS))))
            _sum(lane, own, high_s)


def _sum(lane: Lane, spans: Sequence[Span], high_s: float) -> None:
    lane.covered += coverage(spans, high_s)
    for name, (starts, ends) in times(spans).items():
        lane.seconds[name] = lane.seconds.get(name, 0.0) + float((ends - starts).sum())
        lane.busy.add(starts, ends)


def coverage(lane: Sequence[Span], end_s: float, num_bins: int = NUM_BINS) -> NDArray[np.float64]:
    """[category, bin] -> average number of running spans of the category in the bin."""
    found = np.zeros((len(CATEGORIES), num_bins + 1))
    bin_s = max(end_s, 1e-9) / num_bins
    for name, (starts, ends) in times(lane).items():
        found[CATEGORIES.index(name)] = _integral(ends / bin_s, num_bins) - _integral(starts / bin_s, num_bins)
    return np.maximum(-np.diff(found, axis=1), 0.0)


def times(lane: Sequence[Span]) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Starts and ends of the spans of each category."""
    chosen: dict[str, list[Span]] = {}
    for span in lane:
        chosen.setdefault(span.category, []).append(span)
    return {
        name: (np.array([s.start_s for s in spans]), np.array([s.end_s for s in spans]))
        for name, spans in chosen.items()
        if name in CATEGORIES
    }


def _integral(times: NDArray[np.float64], num_bins: int) -> NDArray[np.float64]:
    """For each edge of a bin: the sum of how much later than the edge each time is."""
    ordered = np.sort(times)
    sums = np.concatenate(([0.0], np.cumsum(ordered)))
    edges = np.arange(num_bins + 1, dtype=np.float64)
    before = np.searchsorted(ordered, edges, side="right")
    result: NDArray[np.float64] = (sums[-1] - sums[before]) - (len(ordered) - before) * edges
    return result


def busy_s(spans: Iterable[Span]) -> float:
    """Seconds with at least one running span."""
    spans, busy = iter(spans), Busy()
    while chunk := list(islice(spans, _CHUNK)):
        busy.add(np.array([s.start_s for s in chunk]), np.array([s.end_s for s in chunk]))
    return busy.seconds()[0]
