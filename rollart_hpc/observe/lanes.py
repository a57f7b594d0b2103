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
from rollart_hpc.observe.trace_sums import Trace

WIDTH, LEFT, RIGHT = 1160, 150, 10
LANE, GAP, FOOT = 26, 8, 22
MAX_ROWS = 6


def overview(trace: Trace) -> str:
    if not trace.lanes:
        return nothing("no trace was written")
    axis = make_axis([0.0, trace.end_s], LEFT, WIDTH - RIGHT, zero=True)
    height = len(trace.lanes) * (LANE + GAP) + FOOT
    body = [_seconds(axis, height), _steps(trace, axis, height)]
    for index, (process, lane) in enumerate(trace.lanes.items()):
        body.append(_occupation(process, lane.covered, axis, index * (LANE + GAP) + 2.0))
    return svg(WIDTH, height, body, "lanes") + _legend(trace)


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


def close_up(trace: Trace) -> str:
    """The individual spans of the last few steps."""
    if not trace.lanes:
        return ""
    start_s, end_s = trace.window
    axis = Axis(start_s, end_s, LEFT, WIDTH - RIGHT, round_ticks(start_s, end_s, 8))
    body, top = [], 2.0
    for process, lane in by_process(trace.close).items():
        drawn, used = _rows(lane, axis, top)
        body.append(label(LEFT - 10, top + used / 2 + 4, process, "end", "label") + drawn)
        top += used + GAP
    body.insert(0, _seconds(axis, top + FOOT) + _steps(trace, axis, top + FOOT))
    return svg(WIDTH, top + FOOT, body, "lanes")


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


def shares(trace: Trace) -> str:
    """How each process spent its time from its first span to its last."""
    stacks: list[Stack] = []
    for process, lane in trace.lanes.items():
        busy_s, idle_s = lane.busy.seconds()
        scale = busy_s / (sum(lane.seconds.values()) or 1.0)  # overlapping spans share the time
        parts = [(name, lane.seconds[name] * scale, name) for name in CATEGORIES if name in lane.seconds]
        stacks.append(Stack(process, [*parts, ("idle", idle_s, "idle")]))
    return bars(stacks, share=True) if stacks else nothing("no trace was written")


def _seconds(axis: Axis, height: float) -> str:
    lines = (
        f'<line class="grid" x1="{axis(t):g}" x2="{axis(t):g}" y1="0" y2="{height - FOOT + 4:g}"/>'
        + label(axis(t), height - 5, f"{t:g} s", "middle")
        for t in axis.ticks
    )
    return "".join(lines)


def _steps(trace: Trace, axis: Axis, height: float) -> str:
    """A line at the end of each step, unless there are too many to tell apart."""
    return "".join(
        f'<line class="step" x1="{axis(s.end_s):g}" x2="{axis(s.end_s):g}" y1="0" y2="{height - FOOT:g}"'
        f' data-t="end of step {s.args.get("step", "?")}"/>'
        for s in trace.steps
        if axis.low <= s.end_s <= axis.high
    )


def _legend(trace: Trace) -> str:
    used = {name for lane in trace.lanes.values() for name in lane.seconds}
    return legend((name, name) for name in CATEGORIES if name in used)
