"""Makes the trace of a process smaller. Owns which spans stay when a trace has reached its budget.

    spans of a trajectory     those of every 2^level-th trajectory stay, chosen by a hash of its id: a trajectory that
                              one process keeps is kept by all processes of the same or a lower level
    all other spans           those of a window of 0.05 s * 2^level become one span per name, one after the other: the
                              sums of each name stay exact, the order inside a window does not

The level grows only as far as needed, so the whole run stays visible, ever more coarsely.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import msgspec

TRAJECTORY = "slot"  # the argument of a span that names its trajectory
WINDOW_S = 0.05
MAX_LEVEL = 40
MAX_OFFSETS = 256
_SUMS = ("tokens", "steps", "bytes", "spans")

Row = dict[str, Any]


def is_kept(trajectory: str, level: int) -> bool:
    return not zlib.crc32(trajectory.encode()) & ((1 << level) - 1)


def thin(rows: list[Row], level: int, target_bytes: int) -> tuple[bytes, int]:
    """The rows in at most `target_bytes`, if that is possible, and the level that it took."""
    level = max([level, *(row.get("level", 0) for row in rows)])
    rows = _fewer_offsets([row for row in rows if "level" not in row])
    while True:
        rows = list(_thinned(rows, level))
        data = msgspec.json.Encoder(enc_hook=str).encode_lines([{"level": level}, *rows])
        if len(data) <= target_bytes or level >= MAX_LEVEL:
            return data, level
        level += 1


def _fewer_offsets(rows: list[Row]) -> list[Row]:
    offsets = [index for index, row in enumerate(rows) if "offset" in row]
    dropped = set(offsets[1:-1:2]) if len(offsets) > MAX_OFFSETS else set()
    return [row for index, row in enumerate(rows) if index not in dropped]


def _thinned(rows: list[Row], level: int) -> Iterator[Row]:
    window_s = WINDOW_S * (1 << level)
    window, sums = 0, dict[str, Row]()
    for row in rows:
        if "name" not in row:
            yield from _in_a_row(sums)
            yield row
            sums = {}
            continue
        trajectory = row.get("args", {}).get(TRAJECTORY)
        if trajectory is not None:
            if is_kept(str(trajectory), level):
                yield row
            continue
        if sums and int(row["start"] // window_s) != window:
            yield from _in_a_row(sums)
            sums = {}
        window = int(row["start"] // window_s)
        sums[row["name"]] = _sum(sums[row["name"]], row) if row["name"] in sums else row
    yield from _in_a_row(sums)


def _sum(one: Row, other: Row) -> Row:
    mine, more = one.get("args", {}), other.get("args", {})
    args = {**mine, **more}
    for key in _SUMS:
        if key in args or key == "spans":
            nothing = 1 if key == "spans" else 0
            args[key] = mine.get(key, nothing) + more.get(key, nothing)
    return {**one, "end": one["end"] + max(0.0, other["end"] - other["start"]), "args": args}


def _in_a_row(sums: dict[str, Row]) -> Iterator[Row]:
    """The spans of a window, each after the one before, unless nothing was merged."""
    reached = float("-inf")
    for row in sums.values():
        if len(sums) == 1 or all("spans" not in each.get("args", {}) for each in sums.values()):
            yield row
            continue
        start = max(row["start"], reached)
        reached = start + row["end"] - row["start"]
        yield {**row, "start": round(start, 7), "end": round(reached, 7)}
