"""`logs`: the logs of all processes of a run, merged into one stream. Each line starts with the process name.

With -f, the steps and validations of the run are lines too, under the name `run`.
"""

from __future__ import annotations

import argparse
import heapq
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rollart_hpc.cli.screen import Follower, progress_line
from rollart_hpc.errors import UserError
from rollart_hpc.launch.launcher import Watch, launcher_of_run
from rollart_hpc.observe.status import Status
from rollart_hpc.processes.logs import LOG_LINE
from rollart_hpc.rundir import RunDir, open_run_dir

FOLLOW_S = 0.5


def logs(args: argparse.Namespace) -> int:
    run = open_run_dir(args.run_dir)
    readers: dict[Path, LogReader] = {}
    steps = Follower(run)  # before anything is shown: what happens meanwhile is new
    shown = _show_new(run, args.role, readers)
    if args.role and not readers:
        raise UserError(f"no process of {run.path} is called {args.role!r}", f"its processes: {_names(run)}")
    if not shown and not args.follow:
        print("no logs yet", file=sys.stderr)
    if args.follow:
        _follow(run, args.role, readers, launcher_of_run(run).watch(run), steps)
    return 0


def _follow(run: RunDir, role: str | None, readers: dict[Path, LogReader], watch: Watch, steps: Follower) -> None:
    while True:
        status = watch.look()
        is_over = watch.is_over(status)
        _show_new(run, role, readers)
        if role is None:
            _show_steps(steps, status)
        if is_over:
            return
        time.sleep(FOLLOW_S)


def _show_steps(steps: Follower, status: Status) -> None:
    for record in steps.new():
        line = progress_line(record, status)
        if line:
            print(f"{'run':<20} {line}", flush=True)


def _show_new(run: RunDir, role: str | None, readers: dict[Path, LogReader]) -> bool:
    """Print the lines added since the last call, in time order within an attempt."""
    shown = False
    for path in sorted(run.job_logs.glob("*.log")):  # the batch script's, written before and after the attempts
        if role in (None, "job"):
            readers.setdefault(path, LogReader(path, "job"))
    for attempt in run.attempt_numbers():
        for path in sorted(run.logs(attempt).glob("*.log")):
            if _matches(path.stem, role):
                readers.setdefault(path, LogReader(path))
    for directory in dict.fromkeys(path.parent for path in readers):
        current = [reader for path, reader in readers.items() if path.parent == directory]
        for _, name, text in heapq.merge(*(reader.new() for reader in current), key=lambda record: record[0]):
            print(f"{name:<20} {text}", flush=True)
            shown = True
    return shown


def _matches(name: str, role: str | None) -> bool:
    return role is None or name == role or name.startswith(f"{role}-")


def _names(run: RunDir) -> str:
    names = {path.stem for attempt in run.attempt_numbers() for path in run.logs(attempt).glob("*.log")}
    return ", ".join(sorted(names)) or "none yet"


class LogReader:
    def __init__(self, path: Path, name: str = "") -> None:
        self._path, self._name = path, name or path.stem
        self._offset = 0
        self._time = ""

    def new(self) -> Iterator[tuple[str, str, str]]:
        """(time, process, line). A line without a time, e.g. of a traceback, gets the time of the line before it."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return  # it was moved or removed
        complete = data[: data.rfind(b"\n") + 1]
        self._offset += len(complete)
        for line in complete.decode(errors="replace").splitlines():
            match = LOG_LINE.match(line)
            if match:
                self._time = match["time"]
            text = f"{match['time']} {match['level']} {match['text']}" if match else line
            yield self._time, self._name, text
