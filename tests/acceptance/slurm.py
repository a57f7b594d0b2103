"""The quickstart as a heterogeneous job, as an ordinary job, and as local processes, side by side."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rollart_hpc.config.rundir import RunDir
from rollart_hpc.observe import metrics, phases
from tests.acceptance.drive import ROOT, Trained, table, train, write_page

LIMIT = 1.3  # controller start to first step, over that of a local run


@contextmanager
def cluster(directory: Path) -> Iterator[None]:
    """A development cluster of our own, which every command of this process uses meanwhile."""
    devcluster = [str(ROOT / "launchers" / "devcluster")]
    place = ["--dir", str(directory)]
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([*devcluster, "up", *place], check=True, env=environment)
    try:
        said = subprocess.run(
            [*devcluster, "env", *place], check=True, env=environment, text=True, stdout=subprocess.PIPE
        )
        for word in shlex.split(said.stdout):
            name, is_setting, value = word.partition("=")
            if is_setting:
                os.environ[name] = value
        yield
    finally:
        subprocess.run([*devcluster, "down", *place], check=True, env=environment)
        os.environ.pop("SLURM_CONF", None)


def slurm(keep: Path) -> bool:
    with cluster(keep / "cluster"):
        runs = {
            "local": train("quickstart", keep / "local"),
            "dev": train("quickstart", keep / "dev", site="dev"),
            "single": train("quickstart", keep / "single", site="single"),
        }
    write_page("slurm", page(runs))
    if any(trained.code for trained in runs.values()):
        return False
    ratios = [first_step_s(runs[site]) / first_step_s(runs["local"]) for site in ("dev", "single")]
    return max(ratios) <= LIMIT and all(learned(trained.status) for trained in runs.values())


def learned(status: dict[str, Any]) -> bool:
    return all(task["score_first"] < 0.3 and task["score_last"] > 0.75 for task in status["tasks"].values())


def first_step_s(trained: Trained) -> float:
    return phases.first_step_s(metrics.read(RunDir(trained.run_dir).metrics)) or 0.0


def page(runs: dict[str, Trained]) -> list[str]:
    rows = []
    for site, trained in runs.items():
        status = trained.status
        if not status:
            rows.append([site, f"failed (exit code {trained.code})", *["-"] * 4])
            continue
        for name, task in status["tasks"].items():
            shares = ", ".join(f"{pool} {share:.0%}" for pool, share in task["pool_share"].items())
            scores = [f"{task['score_first']:.2f}", f"{task['score_last']:.2f}"]
            rows.append([site, name, *scores, shares, f"{first_step_s(trained):.1f} s"])
    head = ["site", "task", "success first", "success last", "served by", "controller start to first step"]
    return [
        "# The quickstart on Slurm",
        "",
        "`rollart-hpc submit quickstart --site SITE --wait` on the development cluster, real Slurm with virtual nodes",
        "on the same 2 shared CPU cores, beside `rollart-hpc run quickstart`. Site `dev`: one heterogeneous job over",
        "three partitions, `single` an ordinary job in one partition. Measured by:",
        "",
        "```",
        "python tests/acceptance/run.py slurm",
        "```",
        "",
        *table(head, rows),
    ]
