"""The quickstart as a heterogeneous job, as an ordinary job, and as local processes, side by side."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rollart_hpc.launch.slurm import record
from rollart_hpc.observe import metrics, phases
from rollart_hpc.rundir import RunDir
from tests.acceptance.drive import ROOT, Trained, rollart, table, train, write_page

END_LIMIT_S = 10.0  # from scancel to the end of the last process
LIMIT = 1.3  # controller start to first step, over that of a local run


@contextmanager
def cluster(directory: Path, *options: str) -> Iterator[None]:
    """A development cluster of our own, which every command of this process uses meanwhile."""
    devcluster = [str(ROOT / "launchers" / "devcluster")]
    place = ["--dir", str(directory)]
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([*devcluster, "up", *place, *options], check=True, env=environment)
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
        end_s, what_stays = scancel(keep / "cancelled")
    write_page("slurm", [*page(runs), "", ending(end_s, what_stays)])
    if any(trained.code for trained in runs.values()):
        return False
    ratios = [first_step_s(runs[site]) / first_step_s(runs["local"]) for site in ("dev", "single")]
    is_clean = end_s <= END_LIMIT_S and not what_stays
    return is_clean and max(ratios) <= LIMIT and all(learned(trained.status) for trained in runs.values())


def scancel(run_dir: Path) -> tuple[float, list[str]]:
    """Seconds from scancel of a running job to the end of its last process, and what is in shared memory then."""
    rollart("submit", "quickstart", "--site", "dev", "--run-dir", str(run_dir), "steps=100000")
    run = RunDir(run_dir)
    while status(run_dir)["step"] < 2:
        time.sleep(1.0)
    (began,) = (line for line in record.read(run) if isinstance(line, record.Began))
    began_s = time.monotonic()
    subprocess.run(["scancel", str(began.job)], check=True)
    while working_in(run_dir):
        time.sleep(0.05)
    end_s = time.monotonic() - began_s
    while status(run_dir)["state"] != "cancelled":
        time.sleep(0.2)
    return end_s, sorted(path.name for path in run.store_root.glob("*"))


def status(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(rollart("status", str(run_dir), "--json"))
    return found


def working_in(directory: Path) -> list[str]:
    """Processes of the run: all of them work in its directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "cwd").readlink() == directory.resolve():
                found.append(process.name)
    return found


def ending(end_s: float, what_stays: list[str]) -> str:
    left = f"but shared memory still had {', '.join(what_stays)}" if what_stays else "and nothing in shared memory"
    return f"`scancel` of the running job: after {end_s:.1f} s no process was left, {left}. State: cancelled."


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
        "on the same 2 shared CPU cores, compared with `rollart-hpc run quickstart`. `dev` is one heterogeneous job",
        "over three partitions, `single` an ordinary job in one. Measured by:",
        "",
        "```",
        "python tests/acceptance/run.py slurm",
        "```",
        "",
        *table(head, rows),
    ]
