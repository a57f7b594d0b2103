"""Small charts as SVG text. Owns scales, axes and marks; knows nothing about runs.

Colours are CSS classes (`c1`.. for series, names for fixed meanings), so the page decides how they look in light and
dark mode. An element that shows text on hover has it in `data-t`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 560, 240
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 10, 34
MAX_POINTS = 400


@dataclass
class Series:
    name: str
    colour: str
    points: list[tuple[float, float]]
    faint: bool = False  # a thin line without dots, for noisy values


@dataclass
class Stack:
    """One bar: its parts in order, each (name, value, colour)."""

    label: str
    parts: list[tuple[str, float, str]]
    note: str = ""


@dataclass
class Axis:
    """A linear scale from data to pixels with round ticks."""

    low: float
    high: float
    start: float
    end: float
    ticks: list[float] = field(default_factory=list)

    def __call__(self, value: float) -> float:
        span = self.high - self.low or 1.0
        return round(self.start + (value - self.low) / span * (self.end - self.start), 2)


def make_axis(values: Iterable[float], start: float, end: float, *, zero: bool = False, whole: bool = False) -> Axis:
    """An axis that covers all values. `zero`: includes 0; `whole`: ticks at whole numbers only."""
    known = [v for v in values if math.isfinite(v)] or [0.0, 1.0]
    low, high = min(known), max(known)
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if high - low < 1e-12:
        low, high = (low - 0.5, high + 0.5) if not zero or low else (0.0, 1.0)
    ticks = round_ticks(low, high, 5)
    if whole:
        ticks = [t for t in ticks if t == int(t)] or [low]
    return Axis(low, high, start, end, ticks)


def round_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` values of the form {1, 2, 5} x 10^k within [low, high]."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]


def number(value: float) -> str:
    """1234567 -> 1.23M, 4281.3 -> 4,281, 0.0412 -> 0.0412"""
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e5, "k")):
        if abs(value) >= limit:
            return f"{value / (1e3 if unit == 'k' else limit):.3g}{unit}"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.3g}"


def thin(points: Sequence[tuple[float, float]], limit: int = MAX_POINTS) -> list[tuple[float, float]]:
    """Reduce to at most `limit` points by averaging neighbours."""
    if len(points) <= limit:
        return list(points)
    size = math.ceil(len(points) / limit)
    chunks = (points[i : i + size] for i in range(0, len(points), size))
    return [(sum(x for x, _ in c) / len(c), sum(y for _, y in c) / len(c)) for c in chunks]


def line_chart(
    series: list[Series],
    *,
    x_title: str,
    y_limits: tuple[float, float] | None = None,
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    """Lines over a common x axis of whole numbers. `marks`: (x, text) of vertical lines."""
    shown = [Series(s.name, s.colour, thin(_finite(s.points)), s.faint) for s in series]
    shown = [s for s in shown if s.points]
    if not shown:
        return nothing()
    xs = [x for s in shown for x, _ in s.points]
    ys = list(y_limits or [y for s in shown for _, y in s.points])
    x_axis = make_axis(xs, LEFT, WIDTH - RIGHT, whole=True)
    y_axis = make_axis(ys, HEIGHT - BOTTOM, TOP)
    body = [_y_grid(y_axis), _x_labels(x_axis, x_title)]
    body += [_mark(x_axis(x), text) for x, text in marks if x_axis.low <= x <= x_axis.high]
    body += [_line(s, x_axis, y_axis) for s in shown]
    return svg(WIDTH, HEIGHT, body) + legend((s.name, s.colour) for s in shown)


def _finite(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _line(series: Series, x_axis: Axis, y_axis: Axis) -> str:
    places = [(x_axis(x), y_axis(y)) for x, y in series.points]
    path = "M" + "L".join(f"{x:g},{y:g}" for x, y in places)
    kind = "faint" if series.faint else "strong"
    out = [f'<path class="line {kind} {series.colour}" d="{path}"/>']
    dots = not series.faint and len(places) <= 60
    for (x, y), (at, value) in zip(places, series.points, strict=True):
        if dots:
            out.append(f'<circle class="dot {series.colour}" cx="{x:g}" cy="{y:g}" r="3.2"/>')
        if len(places) <= 200:
            text = f"{series.name}: {number(value)} at {number(round(at, 1))}"
            out.append(f'<circle class="hover" cx="{x:g}" cy="{y:g}" r="8" data-t="{escape(text)}"/>')
    return "".join(out)


def columns(stacks: list[Stack], *, x_title: str, unit: str = "") -> str:
    """Vertical stacked bars, from zero."""
    totals = [sum(value for _, value, _ in stack.parts) for stack in stacks]
    if not any(totals):
        return nothing()
    y_axis = make_axis([0.0, *totals], HEIGHT - BOTTOM, TOP, zero=True)
    pitch = (WIDTH - LEFT - RIGHT) / len(stacks)
    wide = max(1.0, min(pitch * 0.78, 64.0)) if len(stacks) < 80 else pitch
    body = [_y_grid(y_axis)]
    for index, stack in enumerate(stacks):
        x = LEFT + pitch * (index + 0.5) - wide / 2
        body.append(_column(stack, x, wide, y_axis, unit))
        if index % max(1, math.ceil(len(stacks) / 12)) == 0:
            body.append(label(x + wide / 2, HEIGHT - BOTTOM + 15, stack.label, "middle"))
    body.append(label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 3, x_title, "middle", "title"))
    return svg(WIDTH, HEIGHT, body) + legend(_parts_of(stacks))


def _column(stack: Stack, x: float, wide: float, y_axis: Axis, unit: str) -> str:
    out, base = [], 0.0
    for name, value, colour in stack.parts:
        top, bottom = y_axis(base + value), y_axis(base)
        base += value
        if value > 0:
            text = f"{stack.label}: {name} {number(value)}{unit}".strip()
            out.append(rect(x, top, (wide, bottom - top), colour, text))
    return "".join(out)


def bars(stacks: list[Stack], *, share: bool = False, unit: str = "") -> str:
    """Horizontal stacked bars. `share`: every bar is scaled to the full width."""
    totals = [sum(value for _, value, _ in stack.parts) for stack in stacks]
    if not any(totals):
        return nothing()
    left, row, note = 150, 30, 64
    axis = Axis(0.0, max(totals), 0.0, WIDTH - left - note)
    body: list[str] = []
    for index, (stack, total) in enumerate(zip(stacks, totals, strict=True)):
        y = index * row + 6.0
        scale = axis.high / total if share and total else 1.0
        x = float(left)
        for name, value, colour in stack.parts:
            wide = axis(value * scale)
            if value > 0:
                shown = f"{value / total:.1%}" if share else f"{number(value)}{unit}"
                body.append(rect(x, y, (max(wide, 0.75), row - 12), colour, f"{stack.label}: {name} {shown}"))
            x += wide
        body.append(label(left - 10, y + 13, _short(stack.label), "end", "label"))
        body.append(label(x + 8, y + 13, stack.note, "start"))
    return svg(WIDTH, len(stacks) * row + 4, body) + legend(_parts_of(stacks))


def _parts_of(stacks: list[Stack]) -> list[tuple[str, str]]:
    """Entries of the legend of stacked bars; none if there is only one kind of part."""
    parts = list(dict.fromkeys((name, colour) for stack in stacks for name, value, colour in stack.parts if value > 0))
    return parts if len(parts) > 1 else []


def svg(width: float, height: float, body: Iterable[str], classes: str = "chart") -> str:
    return f'<svg class="{classes}" viewBox="0 0 {width:g} {height:g}" role="img">{"".join(body)}</svg>'


def legend(entries: Iterable[tuple[str, str]]) -> str:
    keys = "".join(f'<span class="key"><i class="{colour}"></i>{escape(name)}</span>' for name, colour in entries)
    return f'<div class="legend">{keys}</div>' if keys else ""


def nothing(text: str = "nothing was recorded") -> str:
    return f'<p class="nothing">{escape(text)}</p>'


def _short(text: str, limit: int = 20) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def rect(x: float, y: float, size: tuple[float, float], colour: str, hover: str) -> str:
    wide, high = size
    return (
        f'<rect class="{colour}" x="{x:.2f}" y="{y:.2f}" width="{wide:.2f}" height="{max(high, 0.5):.2f}" rx="1.5"'
        f' data-t="{escape(hover)}"/>'
    )


def label(x: float, y: float, text: str, anchor: str, kind: str = "tick") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _y_grid(axis: Axis) -> str:
    lines = (
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{axis(t):g}" y2="{axis(t):g}"/>'
        + label(LEFT - 7, axis(t) + 4, number(t), "end")
        for t in axis.ticks
    )
    return "".join(lines)


def _x_labels(axis: Axis, title: str) -> str:
    labels = "".join(label(axis(t), HEIGHT - BOTTOM + 15, number(t), "middle") for t in axis.ticks)
    return labels + label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 3, title, "middle", "title")


def _mark(x: float, text: str) -> str:
    return (
        f'<line class="mark" x1="{x:g}" x2="{x:g}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
        f'<circle class="mark-head" cx="{x:g}" cy="{TOP}" r="3.5" data-t="{escape(text)}"/>'
    )
