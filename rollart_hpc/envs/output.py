"""What environments print, on its way into the worker's log. Owns a pipe per task and the limits.

A thread reads the pipes: lines get the name of their task, long ones are cut, and a task that prints too much loses
output until it prints less. What is lost is read all the same, so no environment waits for ever; it is read no faster
than about 6 MB/s, so a task that floods its output slows only itself.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Iterable

log = logging.getLogger("rollart_hpc.env.output")

LINE_BYTES = 1000
BURST_BYTES = 64 << 10  # a task may print this much at once
BYTES_PER_S = 2 << 10  # and this much all the time
TOTAL_BYTES = 16 << 20  # of a task in this worker's log
_READ_BYTES = 64 << 10
_PAUSE_S = 0.01  # after every round


class Budget:
    """How much a task may still print. Once it is spent nothing is printed until half of the burst is back."""

    def __init__(self, now_s: float) -> None:
        self.lost_bytes = 0
        self.is_spent = False
        self._left = float(BURST_BYTES)
        self._total_left = TOTAL_BYTES
        self._seen_s = now_s

    def take(self, num_bytes: int, now_s: float) -> bool:
        self.recovers(now_s)
        if self.is_spent or num_bytes > self._left or num_bytes > self._total_left:
            self.is_spent = True
            self.lost_bytes += num_bytes
            return False
        self._left -= num_bytes
        self._total_left -= num_bytes
        return True

    def recovers(self, now_s: float) -> bool:
        """Whether something may be printed now."""
        self._left = min(BURST_BYTES, self._left + BYTES_PER_S * (now_s - self._seen_s))
        self._seen_s = now_s
        if self._left >= BURST_BYTES / 2 and self._total_left >= LINE_BYTES:
            self.is_spent = False
        return not self.is_spent


class Lines:
    """The output of one task: cuts it into lines and writes those that its budget allows."""

    def __init__(self, task: str, now_s: float) -> None:
        self._task = task
        self._budget = Budget(now_s)
        self._rest = b""
        self._is_cut = False  # the rest of a long line is skipped

    def feed(self, data: bytes, now_s: float) -> None:
        if self._budget.is_spent:
            if not self._budget.recovers(now_s):
                self._budget.lost_bytes += len(data)  # not worth cutting into lines
                self._rest, self._is_cut = b"", not data.endswith(b"\n")
                return
            log.warning("%s: %d bytes of its output were dropped", self._task, self._budget.lost_bytes)
            self._budget.lost_bytes = 0
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._write(line, now_s)
        if len(self._rest) > LINE_BYTES:
            self._write(self._rest, now_s)
            self._rest, self._is_cut = b"", True

    def end(self, now_s: float) -> None:
        if self._rest:
            self._write(self._rest, now_s)
        if self._budget.lost_bytes:
            log.warning("%s: %d bytes of its output were dropped", self._task, self._budget.lost_bytes)

    def _write(self, line: bytes, now_s: float) -> None:
        if self._is_cut:
            self._is_cut = False
            return
        was_spent = self._budget.is_spent
        if self._budget.take(min(len(line), LINE_BYTES) + 1, now_s):
            text = line[:LINE_BYTES].decode(errors="replace")
            more = " [cut]" if len(line) > LINE_BYTES else ""
            log.info("%s: %s%s", self._task, "".join(c if c.isprintable() else " " for c in text), more)
        elif not was_spent:
            log.warning(
                "%s: dropping its output: more than %d kB at once, %d kB/s or %d MB in all; print less, or to a file",
                self._task, BURST_BYTES >> 10, BYTES_PER_S >> 10, TOTAL_BYTES >> 20,
            )  # fmt: skip


class Output:
    """A pipe per task. `writer(task)` is the end that its processes write to; nobody closes it but `close`."""

    def __init__(self, tasks: Iterable[str]) -> None:
        self._pipes = {task: os.pipe() for task in tasks}
        self._stop_in, self._stop_out = os.pipe()
        self._thread = threading.Thread(target=self._read, name="output", daemon=True)
        self._thread.start()

    def writer(self, task: str) -> int:
        return self._pipes[task][1]

    def close(self) -> None:
        """Writes what the pipes still hold."""
        os.write(self._stop_out, b"x")
        self._thread.join()
        for descriptor in (self._stop_in, self._stop_out, *(end for pipe in self._pipes.values() for end in pipe)):
            os.close(descriptor)

    def _read(self) -> None:
        now_s = time.monotonic()
        lines = {reader: Lines(task, now_s) for task, (reader, _) in self._pipes.items()}
        poll = select.poll()
        for descriptor in (*lines, self._stop_in):
            poll.register(descriptor, select.POLLIN)
        is_open = True
        while is_open:
            ready = [descriptor for descriptor, _ in poll.poll()]
            is_open = self._stop_in not in ready
            for reader in lines.keys() & set(ready):
                lines[reader].feed(os.read(reader, _READ_BYTES), time.monotonic())
            if is_open:
                time.sleep(_PAUSE_S)
        for each in lines.values():
            each.end(time.monotonic())
