"""The runs that are served, and what is known of each. Owns caches; finds runs by name only, never by a path.

A name that comes with a request is looked up in what a listing of the roots found, so no request can lead elsewhere.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from rollart_hpc.errors import RollartError
from rollart_hpc.launch.launcher import launcher_of_run, run_status
from rollart_hpc.launch.status import RunStatus
from rollart_hpc.observe.history import History, read_history
from rollart_hpc.observe.report import load_run
from rollart_hpc.observe.sections import Run
from rollart_hpc.rundir import RunDir
from rollart_hpc.serve.index import PlayIndex
from rollart_hpc.vocabulary import RunState

LIST_S, STATUS_S, CLUSTER_S, PAGE_S = 2.0, 1.0, 20.0, 2.0
SLOW = 10  # a result is kept so many times as long as it took: traces of long runs take a while to read
T = TypeVar("T")


class Kept(NamedTuple):
    due_s: float  # until then it is shown as it is
    mark: tuple[int, ...]  # of the files that it was made from
    value: Any


class Shelf:
    """One run. What is asked for again within a moment is not read again."""

    def __init__(self, name: str, run: RunDir) -> None:
        self.name, self.run = name, run
        self.index = PlayIndex(run)
        self._lock = threading.Lock()
        self._kept: dict[str, Kept] = {}
        self._num_dropped = 0

    def status(self) -> RunStatus:
        return self._recent("status", self._status_s(), self._look)

    def page(self) -> Run:
        return self._recent("page", PAGE_S, lambda: load_run(self.run.path))

    def history(self) -> History:
        return self._recent("history", PAGE_S, lambda: read_history(self.run.metrics))

    def mark(self) -> tuple[int, ...]:
        """Differs when something was written."""
        return tuple(_size(path) for path in (self.run.status, self.run.metrics, self.run.supervisor))

    def news(self) -> object:
        """Differs when a page would show something else: something was written, or what was kept since is due."""
        now, mark = time.monotonic(), self.mark()
        with self._lock:
            stale = [what for what, kept in self._kept.items() if now >= kept.due_s and kept.mark != mark]
            for what in stale:
                del self._kept[what]
            self._num_dropped += len(stale)
            return mark, self._num_dropped

    def _look(self) -> RunStatus:
        try:
            return run_status(self.run)
        except RollartError as error:  # a damaged file, or a cluster that does not answer
            return RunStatus(name=self.name, state=RunState.UNKNOWN, reason=error.what, run_dir=str(self.run.path))

    def _status_s(self) -> float:
        """Slurm is asked rarely."""
        with suppress(RollartError):
            return CLUSTER_S if launcher_of_run(self.run).is_cluster else STATUS_S
        return CLUSTER_S

    def _recent(self, what: str, seconds: float, make: Callable[[], T]) -> T:
        with self._lock:
            kept, began_s = self._kept.get(what), time.monotonic()
            if kept is None or began_s >= kept.due_s:
                mark, value = self.mark(), make()
                ended_s = time.monotonic()
                self._kept[what] = Kept(ended_s + max(seconds, SLOW * (ended_s - began_s)), mark, value)
                return value
            found: T = kept.value
            return found


class Library:
    def __init__(self, places: Sequence[Path]) -> None:
        """`places`: run directories and directories of runs."""
        self._places = places
        self._lock = threading.Lock()
        self._shelves: dict[Path, Shelf] = {}
        self._by_name: dict[str, Shelf] = {}
        self._due_s = 0.0

    def shelves(self) -> list[Shelf]:
        """Newest first."""
        with self._lock:
            if time.monotonic() >= self._due_s:
                self._list()
                self._due_s = time.monotonic() + LIST_S
            return list(self._by_name.values())

    def find(self, name: str) -> Shelf | None:
        self.shelves()
        return self._by_name.get(name)

    def _list(self) -> None:
        born: dict[Path, float] = {}
        for place in self._places:
            for identity in (place / "run.json", *place.glob("*/run.json")):
                with suppress(OSError, ValueError, KeyError, TypeError):  # not ours, or damaged
                    born[identity.parent.absolute()] = float(json.loads(identity.read_text())["created_s"])
        self._by_name = {}
        for path in sorted(born, key=born.__getitem__, reverse=True):
            name = path.name if path.name not in self._by_name else f"{path.parent.name}~{path.name}"
            shelf = self._shelves.get(path)
            if shelf is None or shelf.name != name:
                shelf = Shelf(name, RunDir(path))
            self._by_name[name] = self._shelves[path] = shelf


def _size(path: Path) -> int:
    try:
        found = path.stat()
    except OSError:
        return 0
    return found.st_size * 1_000_003 + found.st_mtime_ns
