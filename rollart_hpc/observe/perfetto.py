"""trace.json: the timeline for ui.perfetto.dev and chrome://tracing. Owns that format.

A process of the run is a process of the trace. Overlapping spans of a process get separate rows ("threads").
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from rollart_hpc.files import replacing
from rollart_hpc.observe.timeline import Span, read_file, rows_of
from rollart_hpc.observe.trace_sums import chosen_files, shifted

# colour names of Chrome's trace viewer; Perfetto colours by span name, with the same effect
COLOURS = {
    "prefill": "rail_animation",
    "decode": "thread_state_running",
    "environment": "rail_load",
    "reward": "yellow",
    "train": "thread_state_iowait",
    "weights": "bad",
    "wait": "grey",
}


def merge(trace_dirs: Iterable[Path], target: Path) -> Path:
    """Write the spans of all attempts into one file, one process at a time. Of many processes, some of each role."""
    found = chosen_files(trace_dirs)
    with replacing(target) as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[\n')
        separator = b""
        for event in _events(found):
            file.write(separator + msgspec.json.encode(event))
            separator = b",\n"
        file.write(b"\n]}\n")
    return target


def _events(files: dict[str, list[tuple[Path, float]]]) -> Iterator[dict[str, Any]]:
    for pid, (process, parts) in enumerate(files.items(), 1):
        lane = [span for path, shift_s in parts for span in shifted(read_file(path), shift_s)]
        yield _meta("process_name", pid, 0, {"name": process})
        yield _meta("process_sort_index", pid, 0, {"sort_index": pid})
        named: set[int] = set()
        for row, span in rows_of(lane):
            if row not in named:
                named.add(row)
                yield _meta("thread_name", pid, row, {"name": process if row == 0 else f"{process} +{row}"})
                yield _meta("thread_sort_index", pid, row, {"sort_index": row})
            yield _complete(pid, row, span)


def _meta(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _complete(pid: int, tid: int, span: Span) -> dict[str, Any]:
    event = {
        "ph": "X",
        "name": span.name,
        "cat": span.category,
        "pid": pid,
        "tid": tid,
        "ts": round(span.start_s * 1e6, 1),
        "dur": round((span.end_s - span.start_s) * 1e6, 1),
        "args": span.args,
    }
    if span.category in COLOURS:
        event["cname"] = COLOURS[span.category]
    return event
