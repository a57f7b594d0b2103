"""The quickstart before there were node agents and now, alternately: local, as a heterogeneous job, as an ordinary job.

Before: a job step per process. It runs from a git worktree of that commit, with the packages of this environment.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from rollart_hpc.observe import metrics, phases
from rollart_hpc.rundir import RunDir
from tests.acceptance.drive import ROOT, rollart, table, write_page
from tests.acceptance.slurm import cluster

COMMIT = "45f1f38"  # the last one without agents
PLACES = ("local", "dev", "single")
STEPS = 15
LIMIT = 1.1  # now over before: what pairs on a shared machine can tell
SETTINGS = ("validation.plays=0", f"steps={STEPS}", "model.kind=directory")


class Taken(NamedTuple):
    """Seconds."""

    first_step: float  # from the start of the controller
    last_step: float
    total: float  # from the call of the command to its end


def before(keep: Path, pairs: int) -> bool:
    model = keep / "model"
    rollart("model", "tiny", str(model))
    with worktree(keep / "before") as old, cluster(keep / "cluster"):
        versions = {"before": old, "now": ROOT}
        for version, code in versions.items():  # not counted: modules are compiled, files are read from the disk
            run_once(code, "local", keep / f"{version}-warm", model)
        taken: dict[tuple[str, str], list[Taken]] = {}
        for pair in range(pairs):
            for place in PLACES:
                for version in sorted(versions, reverse=bool(pair % 2)):
                    found = run_once(versions[version], place, keep / f"{version}-{place}-{pair}", model)
                    taken.setdefault((place, version), []).append(found)
                    print(f"{place}, {version}: {found}", flush=True)
    write_page("before", page(taken))
    return all(ratio(taken, place, what) <= LIMIT for place in PLACES for what in Taken._fields)


@contextmanager
def worktree(path: Path) -> Iterator[Path]:
    subprocess.run(["git", "-C", str(ROOT), "worktree", "add", "--detach", "--quiet", str(path), COMMIT], check=True)
    try:
        yield path
    finally:
        subprocess.run(["git", "-C", str(ROOT), "worktree", "remove", "--force", str(path)], check=True)


def run_once(code: Path, place: str, run_dir: Path, model: Path) -> Taken:
    how = ["run", "quickstart"] if place == "local" else ["submit", "quickstart", "--site", place, "--wait"]
    command = [sys.executable, "-m", "rollart_hpc.cli", *how, *SETTINGS, f"model.path={model}"]
    began_s = time.monotonic()
    done = subprocess.run(
        [*command, "--run-dir", str(run_dir)], cwd=code, env={**os.environ, "PYTHONPATH": str(code)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    total_s = time.monotonic() - began_s
    if done.returncode:
        sys.exit(f"{place} from {code} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    lines = list(metrics.read(RunDir(run_dir).metrics))
    last_s = max(float(line["time_s"]) for line in lines if line.get("kind") == "step")
    return Taken(phases.first_step_s(lines) or 0.0, last_s, total_s)


def ratio(taken: dict[tuple[str, str], list[Taken]], place: str, what: str) -> float:
    """Now over before, the median of the pairs."""
    pairs = zip(taken[place, "before"], taken[place, "now"])
    return statistics.median(getattr(now, what) / getattr(old, what) for old, now in pairs)


def page(taken: dict[tuple[str, str], list[Taken]]) -> list[str]:
    words = {"first_step": "controller to first step", "last_step": "controller to last step", "total": "whole command"}
    rows = []
    for place in PLACES:
        for what, name in words.items():
            each = [
                ", ".join(f"{getattr(one, what):.1f}" for one in taken[place, version]) for version in ("before", "now")
            ]
            rows.append([place, name, *each, f"{ratio(taken, place, what):.2f}"])
    return [
        "# Before and after node agents",
        "",
        f"The quickstart with {STEPS} steps, a ready model and without validation, at commit {COMMIT} (a job step per",
        "process) and now (a step per component, whose agents fork the processes), alternately on 2 shared CPU cores.",
        "`local` is `rollart-hpc run`; `dev` one heterogeneous job, `single` an ordinary job of the development",
        "cluster. Seconds of each run; the ratio is the median over the pairs. Measured by:",
        "",
        "```",
        "make acceptance-before",
        "```",
        "",
        *table(["where", "", "before", "now", "now / before"], rows),
    ]
