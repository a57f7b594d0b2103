"""Chaos on the development cluster: every role hit at least twice, and every step trained exactly once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rollart_hpc.chaos.acts import ROLES
from tests.acceptance.drive import ROOT, rollart
from tests.acceptance.live import SMALL, tiny_model
from tests.acceptance.reliability import store
from tests.acceptance.slurm import cluster

SEED = 12
HITS = 2


def chaos(keep: Path, lasting: str = "10m") -> bool:
    model, run_dir = tiny_model(keep), keep / "chaos"
    with cluster(keep / "cluster"):
        rollart("submit", str(SMALL), "--site", "dev", "--run-dir", str(run_dir), "model.kind=directory",
                f"model.path={model}", "steps=1000000", "validation.plays=0", "timeouts.silence_s=10")  # fmt: skip
        summary = hit(run_dir, lasting)
        rollart("cancel", str(run_dir))
    store("chaos", summary)
    hits = {role: sum(summary["acts"].get(role, {}).values()) for role in ROLES}
    print(f"hits: {hits}; problems: {summary['problems']}", flush=True)
    return not summary["problems"] and min(hits.values()) >= HITS


def hit(run_dir: Path, lasting: str) -> dict[str, Any]:
    """What is done is shown as it comes; a bad end is a figure too."""
    command = [sys.executable, "-m", "rollart_hpc.cli", "chaos", str(run_dir), "--json"]
    options = ["--seed", str(SEED), "--for", lasting, "--every", "5", "--patience", "180"]
    done = subprocess.run([*command, *options], cwd=ROOT, text=True, check=False, stdout=subprocess.PIPE)
    summary: dict[str, Any] = json.loads(done.stdout)
    summary.pop("run_dir")
    return summary
