"""Draws the timeline: one lane per process. Gets spans that are already on one clock.

Two views. The overview covers the whole run: for each process and time bin, the share of each category. (A process
that does many things at once, like an env worker, is scaled to its peak.) The close-up shows the individual spans of a
few steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rollart_hpc.observe.charts import Axis, Stack, bars, label, legend, make_axis, nothing, rect, round_ticks, svg
from rollart_hpc.observe.timeline import Span, by_process, rows_of
from rollart_hpc.observe.trace import CATEGORIES

WIDTH, LEFT, RIGHT = 1160, 150, 10
LANE, GAP, FOOT = 26, 8, 22
NUM_BINS = 500
CLOSE_UP_STEPS = 3
CLOSE_UP_S = 30.0
MAX_SPANS = 3000
MAX_ROWS = 6
STEP = "step"


def overview(spans: Sequence[Span]) -> str:
    known = [span for span in spans if span.category in CATEGORIES]
    if not known:
        return nothing("no trace was written")
    axis = make_axis([0.0, max(span.end_s for span in spans)], LEFT, WIDTH - RIGHT, zero=True)
    lanes = by_process(known)
    height = len(lanes) * (LANE + GAP) + FOOT
    body = [_seconds(axis, height), _steps(spans, axis, height)]
    for index, (process, lane) in enumerate(lanes.items()):
        body.append(_occupation(process, coverage(lane, axis.high), axis, index * (LANE + GAP) + 2.0))
    return svg(WIDTH, height, body, "lanes") + _legend(known)


def coverage(lane: Sequence[Span], end_s: float, num_bins: int = NUM_BINS) -> NDArray[np.float64]:
    """[category, bin] -> average number of running spans of the category in the bin."""
    found = np.zeros((len(CATEGORIES), num_bins + 1))
    bin_s = max(end_s, 1e-9) / num_bins
    for name, (starts, ends) in _times(lane).items():
        found[CATEGORIES.index(name)] = _integral(ends / bin_s, num_bins) - _integral(starts / bin_s, num_bins)
    return np.maximum(-np.diff(found, axis=1), 0.0)


def _times(lane: Sequence[Span]) -> dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]:
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


def _occupation(process: str, covered: NDArray[np.float64], axis: Axis, top: float) -> str:
    peak = max(1.0, float(covered.sum(axis=0).max()))
    out = [
        f'<rect class="lane" x="{LEFT}" y="{top}" width="{WIDTH - LEFT - RIGHT}" height="{LANE}" rx="3"/>',
        label(LEFT - 10, top + LANE / 2 + 4, process, "end", "label"),
    ]
    base = np.zeros(covered.shape[1])
    for name, values in zip(CATEGORIES, covered / peak, strict=True):
        if values.max(initial=0.0) > 0.002:
            share = values.mean() / max(float((covered / peak).sum(axis=0).mean()), 1e-9)
            peaked = f", up to {peak:.0f} at once" if peak > 1.5 else ""
            text = f"{process}: {name}, {share:.0%} of its work{peaked}"
            out.append(f'<path class="{name}" d="{_area(base, values, axis, top)}" data-t="{text}"/>')
        base = base + values
    return "".join(out)


def _area(base: NDArray[np.float64], values: NDArray[np.float64], axis: Axis, top: float) -> str:
    """A rectangle per bin from base to base + values; equal neighbours are merged."""
    low = np.round(top + LANE * (1 - base), 1)
    high = np.round(top + LANE * (1 - base - values), 1)
    wide = (axis.end - axis.start) / len(values)
    path: list[str] = []
    begin = 0
    for index in range(1, len(values) + 1):
        if index < len(values) and low[index] == low[begin] and high[index] == high[begin]:
            continue
        if low[begin] > high[begin]:
            x, across = axis.start + begin * wide, (index - begin) * wide
            path.append(f"M{x:.1f} {low[begin]:g}V{high[begin]:g}h{across:.1f}V{low[begin]:g}z")
        begin = index
    return "".join(path)


def close_up(spans: Sequence[Span]) -> str:
    """The individual spans of the last few steps."""
    known = [span for span in spans if span.category in CATEGORIES]
    if not known:
        return ""
    start_s, end_s = _window(spans)
    inside = [s for s in known if s.end_s > start_s and s.start_s < end_s]
    longest = sorted(inside, key=lambda s: s.start_s - s.end_s)[:MAX_SPANS]
    axis = Axis(start_s, end_s, LEFT, WIDTH - RIGHT, round_ticks(start_s, end_s, 8))
    body, top = [], 2.0
    for process, lane in by_process(longest).items():
        drawn, used = _rows(lane, axis, top)
        body.append(label(LEFT - 10, top + used / 2 + 4, process, "end", "label") + drawn)
        top += used + GAP
    body.insert(0, _seconds(axis, top + FOOT) + _steps(spans, axis, top + FOOT))
    return svg(WIDTH, top + FOOT, body, "lanes")


def _window(spans: Sequence[Span]) -> tuple[float, float]:
    """The time of the last steps; without steps, or if they are long, the last seconds."""
    ends = sorted(span.end_s for span in spans if span.name == STEP)
    last_s = ends[-1] if ends else max(span.end_s for span in spans)
    first_s = ends[-1 - CLOSE_UP_STEPS] if len(ends) > CLOSE_UP_STEPS else 0.0
    return max(first_s, last_s - CLOSE_UP_S, 0.0), max(last_s, 1e-6)


def _rows(lane: Sequence[Span], axis: Axis, top: float) -> tuple[str, float]:
    """Spans in one row, or in several if they overlap."""
    placed = [(row, span) for row, span in rows_of(lane) if row < MAX_ROWS * 4]
    num_rows = max((row for row, _ in placed), default=0) + 1
    high = LANE / 2 if num_rows == 1 else max(3.0, min(LANE / 2, 60 / num_rows))
    out = []
    for row, span in placed:
        x, right = axis(max(span.start_s, axis.low)), axis(min(span.end_s, axis.high))
        hover = f"{span.name} {1000 * (span.end_s - span.start_s):.1f} ms"
        hover += "".join(f", {key} {value}" for key, value in span.args.items())
        out.append(rect(x, top + row * high, (max(right - x, 0.4), high - 0.6), span.category, hover))
    return "".join(out), num_rows * high


def shares(spans: Sequence[Span]) -> str:
    """How each process spent its time from its first span to its last."""
    stacks: list[Stack] = []
    for process, lane in by_process(s for s in spans if s.category in CATEGORIES).items():
        seconds = {name: float((ends - starts).sum()) for name, (starts, ends) in _times(lane).items()}
        busy_s, idle_s = busy_and_idle(lane)
        scale = busy_s / (sum(seconds.values()) or 1.0)  # overlapping spans share the time
        parts = [(name, seconds[name] * scale, name) for name in CATEGORIES if name in seconds]
        stacks.append(Stack(process, [*parts, ("idle", idle_s, "idle")]))
    return bars(stacks, share=True) if stacks else nothing("no trace was written")


def busy_and_idle(lane: Sequence[Span]) -> tuple[float, float]:
    """Seconds with at least one running span, and seconds without, between the first span and the last."""
    times = np.array([(s.start_s, s.end_s) for s in lane])
    starts, ends = times[times[:, 0].argsort()].T
    reached = np.maximum.accumulate(ends)
    idle_s = float(np.maximum(starts[1:] - reached[:-1], 0.0).sum())
    return float(reached[-1] - starts[0]) - idle_s, idle_s


def _seconds(axis: Axis, height: float) -> str:
    lines = (
        f'<line class="grid" x1="{axis(t):g}" x2="{axis(t):g}" y1="0" y2="{height - FOOT + 4:g}"/>'
        + label(axis(t), height - 5, f"{t:g} s", "middle")
        for t in axis.ticks
    )
    return "".join(lines)


def _steps(spans: Sequence[Span], axis: Axis, height: float) -> str:
    """A line at the end of each step, unless there are too many to tell apart."""
    steps = [s for s in spans if s.name == STEP and axis.low <= s.end_s <= axis.high]
    if len(steps) > 120:
        return ""
    return "".join(
        f'<line class="step" x1="{axis(s.end_s):g}" x2="{axis(s.end_s):g}" y1="0" y2="{height - FOOT:g}"'
        f' data-t="end of step {s.args.get("step", "?")}"/>'
        for s in steps
    )


def _legend(known: Sequence[Span]) -> str:
    used = {span.category for span in known}
    return legend((name, name) for name in CATEGORIES if name in used)
