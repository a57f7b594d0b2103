"""Spans of time, one file per process. Owns the format of trace files; does not know what the spans mean.

A file is JSON lines of three shapes, in the order they were written:

    {"process": "engine-compute-0", "pid": 4711}            a process starts writing (again, after a restart)
    {"at": 120.0, "offset": -3.25}                          from local time 120.0 on: controller clock = local - 3.25
    {"name": "decode", "start": 120.5, "end": 120.6, "args": {"tokens": 8}}

Times are `time.monotonic()` seconds of the node that wrote them. Only the measured offsets align lanes of different
nodes; wall clocks are never compared. The part of a name before the first dot is its category.

A file never grows beyond its budget: when it is full, `observe.thinning` halves it, and a first line {"level": 3} says
how coarse it is. Spans of trajectories that are no longer kept at this level are then not even recorded.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from rollart_hpc.observe.thinning import TRAJECTORY, Row, is_kept, thin

log = logging.getLogger(__name__)

CATEGORIES = ("prefill", "decode", "environment", "reward", "train", "weights", "wait")
FLUSH_S = 1.0
FLUSH_SPANS = 1000
OFFSET_JITTER_S = 0.0005
MAX_BYTES = 2 << 20  # of a trace, unless the run says otherwise


@lru_cache(maxsize=1024)
def category(name: str) -> str:
    return name.partition(".")[0]


def _foreign(value: Any) -> Any:
    """numpy scalars become numbers; any other value becomes text."""
    return value.item() if hasattr(value, "item") else str(value)


class Tracer:
    """Writes the spans of one process. Cheap and thread-safe. A trace that can't be written never stops the process."""

    def __init__(self, path: Path | None, process: str, max_bytes: int = MAX_BYTES) -> None:
        """`path=None` or `max_bytes=0` makes a tracer that records nothing."""
        path = path if max_bytes else None
        self._path, self._max_bytes = path, max_bytes
        self._num_bytes = 0  # in the file
        self._level = 0
        self._lock = threading.Lock()  # held for an append, never while writing
        self._writing = threading.Lock()
        self._first = threading.Event()  # something waits to be written
        self._full = threading.Event()  # write it now
        self._spans: list[tuple[str, float, float, dict[str, Any]]] = []
        self._notes: list[dict[str, Any]] = [{"process": process, "pid": os.getpid()}]
        self._encoder = msgspec.json.Encoder(enc_hook=_foreign)
        self._fd = -1
        self._closed = path is None
        self._offset_s = float("inf")
        self.num_lost = 0
        if path is not None:
            self._fd = _open(path)
            self._closed = self._fd < 0
            self._num_bytes = 0 if self._closed else os.fstat(self._fd).st_size
        self._thread: threading.Thread | None = None
        if not self._closed:
            self._thread = threading.Thread(target=self._run, name="tracer", daemon=True)
            self._thread.start()
            self._first.set()

    def span(self, name: str, start_s: float, end_s: float, **args: Any) -> None:
        if self._closed or (self._level and TRAJECTORY in args and not is_kept(args[TRAJECTORY], self._level)):
            return
        with self._lock:
            self._spans.append((name, start_s, end_s, args))
            num_waiting = len(self._spans)
        if num_waiting == 1:
            self._first.set()
        elif num_waiting == FLUSH_SPANS:
            self._full.set()

    @contextmanager
    def timed(self, name: str, **args: Any) -> Iterator[dict[str, Any]]:
        """A span around a block; the block may add to the arguments."""
        start_s = time.monotonic()
        try:
            yield args
        finally:
            self.span(name, start_s, time.monotonic(), **args)

    def set_offset(self, seconds: float) -> None:
        """controller clock = this node's clock + seconds, from now on. May be called often: jitter is ignored."""
        if self._closed or abs(seconds - self._offset_s) < OFFSET_JITTER_S:
            return
        self._offset_s = seconds
        with self._lock:
            self._notes.append({"at": time.monotonic(), "offset": seconds})
        self._first.set()

    def flush(self) -> None:
        with self._writing:
            with self._lock:
                notes, self._notes = self._notes, []
                spans, self._spans = self._spans, []
                self._first.clear()
                self._full.clear()
            if self._fd >= 0 and (notes or spans):
                self._write(notes, spans)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._first.set()
        self._full.set()
        assert self._thread is not None
        self._thread.join()
        self.flush()
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closed:
            self._first.wait()
            self._full.wait(FLUSH_S)
            self.flush()

    def _write(self, notes: list[dict[str, Any]], spans: list[tuple[str, float, float, dict[str, Any]]]) -> None:
        rows: list[dict[str, Any]] = list(notes)
        for name, start_s, end_s, args in spans:
            row: dict[str, Any] = {"name": name, "start": round(start_s, 7), "end": round(end_s, 7)}
            if args:
                row["args"] = args
            rows.append(row)
        try:
            data = self._encoder.encode_lines(rows)
            if self._num_bytes + len(data) > self._max_bytes:
                self._thin(data)
            else:
                _write_all(self._fd, data)
                self._num_bytes += len(data)
        except OSError as error:
            if not self.num_lost:
                log.warning("can't write the trace, some spans are lost: %s", error)
            self.num_lost += len(spans)

    def _thin(self, data: bytes) -> None:
        """Replace the file by a coarser one of half its budget, with these lines in it."""
        assert self._path is not None
        rows = [*_parsed(self._path.read_bytes()), *_parsed(data)]
        kept, self._level = thin(rows, self._level, self._max_bytes // 2)
        scratch = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        fd = os.open(scratch, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write_all(fd, kept)
            os.replace(scratch, self._path)
        except OSError:
            os.close(fd)
            with suppress(OSError):
                os.unlink(scratch)
            raise
        os.close(self._fd)
        self._fd, self._num_bytes = fd, len(kept)


def _parsed(data: bytes) -> list[Row]:
    rows: list[Row] = []
    for line in data.splitlines():
        with suppress(msgspec.DecodeError, UnicodeDecodeError):  # a torn line
            rows.append(msgspec.json.decode(line, type=dict))
    return rows


def _open(path: Path) -> int:
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        log.warning("can't write a trace, continuing without it: %s", error)
        return -1


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
