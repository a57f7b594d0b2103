"""From submission to the first step with free GPUs, at several sizes: one heterogeneous job and separate jobs."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from rollart_hpc.rundir import RunDir
from tests.acceptance.drive import rollart, table, write_page
from tests.acceptance.slurm import cluster

MODES = ("het", "jobs")
SIZES = (1, 4, 12)  # engines per pool: two nodes of each kind, which the trainer shares
PAIRS = 2
LIMIT = 2.0  # separate jobs over one job
LIMIT_S = 600.0

Taken = dict[tuple[int, str], list[float]]  # by engines per pool and mode: seconds


def jobs(keep: Path) -> bool:
    rollart("model", "tiny", str(keep / "model"))
    taken: Taken = {(size, mode): [] for size in SIZES for mode in MODES}
    with cluster(keep / "cluster"):
        for pair in range(PAIRS):
            for size, mode in taken:
                run_dir = keep / f"{mode}-{size}-{pair}"
                taken[size, mode].append(first_step_s(run_dir, mode, size, keep / "model"))
                print(f"{mode}, {size} engines per pool: {taken[size, mode][-1]:.1f} s", flush=True)
    write_page("jobs", page(taken))
    return max(ratio(taken, size) for size in SIZES) <= LIMIT


def first_step_s(run_dir: Path, mode: str, size: int, model: Path) -> float:
    """Seconds from the call of `submit` to the first line of the ledger."""
    settings = [f"launch.mode={mode}", *(f"pools.{pool}.engines={size}" for pool in ("compute", "bandwidth"))]
    settings += ["model.kind=directory", f"model.path={model}", "validation.plays=0", "steps=100000"]
    began_s = time.monotonic()
    rollart("submit", "quickstart", "--site", "dev", "--run-dir", str(run_dir), *settings)
    ledger = RunDir(run_dir).ledger
    while not (ledger.exists() and ledger.stat().st_size):
        assert time.monotonic() - began_s < LIMIT_S, f"no step of {run_dir}"
        time.sleep(0.05)
    taken_s = time.monotonic() - began_s
    rollart("cancel", str(run_dir))
    return taken_s


def ratio(taken: Taken, size: int) -> float:
    """Separate jobs over one job, the median of the pairs."""
    return statistics.median(b / a for a, b in zip(taken[size, "het"], taken[size, "jobs"]))


def page(taken: Taken) -> list[str]:
    rows = []
    for size in SIZES:
        each = [", ".join(f"{seconds:.1f}" for seconds in taken[size, mode]) for mode in MODES]
        rows.append([str(size), *each, f"{ratio(taken, size):.2f}"])
    return [
        "# One job or separate jobs: time to the first step",
        "",
        "The quickstart with a ready model and without validation, from the call of `rollart-hpc submit` to the first",
        "committed step, in seconds. All nodes of the development cluster are free, so separate jobs can only lose:",
        "they are submitted when the controller is up. Measured alternately on 2 shared CPU cores, which all engines",
        "share too, by:",
        "",
        "```",
        "make acceptance-jobs",
        "```",
        "",
        *table(["engines per pool", *(f"`launch.mode: {mode}`" for mode in MODES), "median ratio"], rows),
    ]
