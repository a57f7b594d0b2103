"""Whole runs as a user starts them: real processes under the real supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SMALL = HERE / "small.yaml"
LIMIT_S = 300


class Run:
    """A run in its own directory, started by the command a user would type."""

    def __init__(self, directory: Path, model: Path | None) -> None:
        self.directory = directory
        self.model = model
        self.process: subprocess.Popen[str] | None = None

    def start(self, *overrides: str, run: str | Path = SMALL) -> Run:
        base = ["model.kind=directory", f"model.path={self.model}"] if self.model else []
        self._spawn("run", str(run), "--run-dir", str(self.directory), *base, *overrides)
        return self

    def resume(self, *overrides: str) -> Run:
        self._spawn("resume", str(self.directory), *overrides)
        return self

    def _spawn(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "rollart_hpc.cli", *arguments]
        self.process = subprocess.Popen(
            command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/", start_new_session=True
        )

    def wait(self) -> str:
        assert self.process is not None
        output, _ = self.process.communicate(timeout=LIMIT_S)
        assert self.process.returncode == 0, output + self.logs()
        return output

    def status(self) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "rollart_hpc.cli", "status", str(self.directory), "--json"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)

    def live_status(self) -> dict[str, Any]:
        return json.loads((self.directory / "status.json").read_text())

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.directory / name
        whole = path.read_text().split("\n")[:-1] if path.exists() else []  # the last one may be half written
        return [json.loads(line) for line in whole]

    def steps(self) -> list[dict[str, Any]]:
        return [line for line in self.lines("metrics.jsonl") if line["kind"] == "step"]

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert self.process is not None
            assert self.process.poll() is None, f"the run ended before {what}: {self.process.communicate()[0]}"
            assert time.monotonic() < deadline, f"waited too long for {what}\n{self.logs()}"
            time.sleep(0.05)

    def until_step(self, step: int) -> None:
        self.until(lambda: len(self.steps()) >= step, f"step {step}")

    def pid(self, name: str) -> int:
        return int(json.loads((self.directory / "supervisor.json").read_text())["procs"][name]["pid"])

    def pids(self) -> list[int]:
        procs = json.loads((self.directory / "supervisor.json").read_text())["procs"]
        return [int(proc["pid"]) for proc in procs.values()]

    def logs(self) -> str:
        paths = sorted(self.directory.glob("attempts/*/logs/*.log"))
        return "\n".join(f"--- {path.relative_to(self.directory)}\n{path.read_text()[-1500:]}" for path in paths)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture
def run(tmp_path: Path, base_model: Path) -> Iterator[Run]:
    one = Run(tmp_path / "a run", base_model)
    yield one
    one.end()


@pytest.fixture
def make_run(tmp_path: Path, base_model: Path) -> Iterator[Callable[[str], Run]]:
    made: list[Run] = []

    def make(name: str) -> Run:
        made.append(Run(tmp_path / name, base_model))
        return made[-1]

    yield make
    for one in made:
        one.end()
