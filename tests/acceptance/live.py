"""A live run on this machine that acceptance measures while it goes on. Owns its processes and ends them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rollart_hpc.rundir import RunDir
from tests.acceptance.drive import ROOT, rollart

SMALL = ROOT / "tests" / "runs" / "small.yaml"
LIMIT_S = 600.0
END_S = 120.0


class Live:
    def __init__(self, directory: Path, process: subprocess.Popen[bytes], variables: dict[str, str]) -> None:
        self.run, self.process, self._variables = RunDir(directory), process, variables
        self._joined: list[subprocess.Popen[bytes]] = []

    def status(self) -> dict[str, Any]:
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads(self.run.status.read_text())
            return found
        return {}

    def events(self, what: str) -> list[dict[str, Any]]:
        lines = self.run.metrics.read_text().splitlines() if self.run.metrics.exists() else []
        found = []
        for line in lines:
            with suppress(ValueError):
                found.append(json.loads(line))
        return [line for line in found if line.get("what") == what]

    def turns(self) -> int:
        return sum(task["turns"] for task in self.status().get("tasks", {}).values())

    def turns_per_s(self, seconds: float) -> float:
        """Over a window that begins now."""
        turns, began_s = self.turns(), time.monotonic()
        time.sleep(seconds)
        return (self.turns() - turns) / (time.monotonic() - began_s)

    def until(self, condition: Callable[[], Any], what: str, limit_s: float = LIMIT_S) -> float:
        """Returns how long it took."""
        began_s = time.monotonic()
        while not condition():
            assert self.process.poll() is None, f"the run ended before {what}"
            assert time.monotonic() < began_s + limit_s, f"waited {limit_s:g} s for {what}"
            time.sleep(0.1)
        return time.monotonic() - began_s

    def until_step(self, step: int) -> None:
        self.until(lambda: self.status().get("step", 0) >= step, f"step {step}")

    def join(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "rollart_hpc.cli", "join", str(self.run.path), *arguments]
        with open(self.run.path.with_suffix(".joined.log"), "ab") as log:
            self._joined.append(subprocess.Popen(command, env=self._variables, stdout=log, stderr=log))

    def pids(self) -> dict[str, int]:
        procs = json.loads(self.run.supervisor.read_text())["procs"]
        return {name: proc["pid"] for name, proc in procs.items()}

    def end(self) -> None:
        for process in self._joined:
            process.kill()
            process.wait()
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def live(
    keep: Path, name: str, *overrides: str, path: Path | None = None, files: tuple[int, int] | None = None
) -> Iterator[Live]:
    """A run of many steps of the tests' small run file. `path`: for modules; `files`: soft and hard limit of them."""
    model = tiny_model(keep)
    directory = keep / name
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([*([str(path)] if path else []), str(ROOT)])}
    command = [sys.executable, "-m", "rollart_hpc.cli", "run", str(SMALL), "--quiet", "--run-dir", str(directory)]
    command += ["model.kind=directory", f"model.path={model}", "steps=1000000", "validation.plays=0", *overrides]

    if files:
        command = ["prlimit", f"--nofile={files[0]}:{files[1]}", *command]
    with open(directory.with_suffix(".log"), "wb") as log:
        process = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
    one = Live(directory, process, variables)
    try:
        one.until_step(2)
        yield one
    finally:
        one.end()


def tiny_model(keep: Path) -> Path:
    """Made once."""
    if not (keep / "model").exists():
        rollart("model", "tiny", str(keep / "model"), "--run", str(SMALL))
    return keep / "model"
