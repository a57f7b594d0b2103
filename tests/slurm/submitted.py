"""A run on a test cluster, driven by the commands a user would type."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rollart_hpc.devcluster.cluster import Cluster
from rollart_hpc.launch.launcher import launcher_of_run
from rollart_hpc.launch.ownership import has_finished
from rollart_hpc.launch.slurm import record
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import RunState

SMALL = Path(__file__).parent.parent / "runs" / "small.yaml"
LIMIT_S = 400
WORKING_IN = """
import os, sys
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        if os.readlink(f"/proc/{pid}/cwd") == sys.argv[1]:
            print(pid, open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[19])
    except OSError:
        pass
"""
# In mode sync a step trains on what its own version played, and with `deterministic` it always plays the same.
DETERMINISTIC = ("mode=sync", "deterministic=true", "flow.redundancy=0", "validation.plays=0", "checkpoint.every=0")
# A step must last long enough that something can happen to the run in the middle.
SLOWLY = "tasks.frozenlake.trouble.turn_latency.mean_s=0.3"
VERY_SLOWLY = "tasks.frozenlake.trouble.turn_latency.mean_s=1.0"  # some 4 s
ALONE = "job.sbatch.exclusive=true"  # nodes that no other run has


def until(condition: Callable[[], Any], what: str, state: Callable[[], str] = str) -> Any:
    deadline_s = time.monotonic() + LIMIT_S
    while not (found := condition()):
        assert time.monotonic() < deadline_s, f"waited too long for {what}\n{state()}"
        time.sleep(0.2)
    return found


class Submitted:
    def __init__(self, cluster: Cluster, directory: Path, model: Path, site: str = "dev") -> None:
        self.cluster, self.run, self.model, self.site = cluster, RunDir(directory), model, site

    def submit(self, *overrides: str) -> Submitted:
        model = ("model.kind=directory", f"model.path={self.model}")
        command = ("submit", str(SMALL), "--site", self.site, "--run-dir", str(self.run.path), *model, *overrides)
        done = cli(*command)
        assert done.returncode == 0, done.stderr
        return self

    def status(self) -> dict[str, Any]:
        done = cli("status", str(self.run.path), "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def ledger(self) -> list[dict[str, Any]]:
        path = self.run.ledger
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if "step" in line]

    def begun(self) -> list[record.Began]:
        return [line for line in record.read(self.run) if isinstance(line, record.Began)]

    def hosts(self, hardware: str) -> list[str]:
        """Of the newest start."""
        return next(part.hosts for part in self.begun()[-1].parts if part.hardware == hardware)

    @property
    def job(self) -> int:
        return self.begun()[-1].job

    def until_steps(self, count: int) -> None:
        self.until(lambda: len(self.ledger()) >= count, f"{count} steps")

    def until_begun(self, count: int) -> None:
        def has_begun() -> bool:
            assert not has_finished(self.run), f"over before start {count}\n{self.told()}"
            return len(self.begun()) >= count

        self.until(has_begun, f"start {count}")

    def until_over(self) -> dict[str, Any]:
        self.until_state(*(state for state in RunState if state.is_over))
        return self.status()

    def until_state(self, *states: str, attempt: int = 0) -> None:
        """What `status` looks at, in this process: a command five times a second is half a core."""
        watch = launcher_of_run(self.run).watch(self.run)

        def is_there() -> bool:
            now = watch.look()
            return now.state in states and now.attempt >= attempt

        self.until(is_there, " or ".join(states))

    def until(self, condition: Callable[[], Any], what: str) -> None:
        until(condition, what, self.told)

    def processes(self) -> set[str]:
        """Of this run, on all nodes: "pid start" of whatever works in its directory."""
        done = self.cluster.run(sys.executable, "-c", WORKING_IN, str(self.run.path))
        assert done.returncode == 0, done.stderr
        return set(done.stdout.splitlines())

    def told(self) -> str:
        paths = sorted([*self.run.job_logs.glob("*"), *self.run.attempts.glob("*/logs/*.log")])
        queue = self.cluster.run("squeue", "--states=all").stdout
        return queue + "\n".join(f"--- {path}\n{path.read_text()[-1500:]}" for path in paths)


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rollart_hpc.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S, cwd="/")
