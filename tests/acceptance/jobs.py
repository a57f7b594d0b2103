"""From submission to the first step with free GPUs: one heterogeneous job, and separate jobs, alternately."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from rollart_hpc.rundir import RunDir
from tests.acceptance.drive import rollart, table, write_page
from tests.acceptance.slurm import cluster

MODES = ("het", "jobs")
PAIRS = 3
LIMIT = 2.0  # separate jobs over one job
LIMIT_S = 300.0


def jobs(keep: Path) -> bool:
    rollart("model", "tiny", str(keep / "model"))
    taken: dict[str, list[float]] = {mode: [] for mode in MODES}
    with cluster(keep / "cluster"):
        for pair in range(PAIRS):
            for mode in MODES:
                taken[mode].append(first_step_s(keep / f"{mode}-{pair}", mode, keep / "model"))
                print(f"{mode}: {taken[mode][-1]:.1f} s", flush=True)
    ratio = statistics.median(b / a for a, b in zip(taken["het"], taken["jobs"]))
    print(f"time to the first step, jobs over het: {ratio:.2f}")
    write_page("jobs", page(taken, ratio))
    return ratio <= LIMIT


def first_step_s(run_dir: Path, mode: str, model: Path) -> float:
    """Seconds from the call of `submit` to the first line of the ledger."""
    model_keys = ("model.kind=directory", f"model.path={model}")
    began_s = time.monotonic()
    rollart("submit", "quickstart", "--site", "dev", "--run-dir", str(run_dir), f"launch.mode={mode}", *model_keys,
            "validation.plays=0", "steps=100000")  # fmt: skip
    ledger = RunDir(run_dir).ledger
    while not (ledger.exists() and ledger.stat().st_size):
        assert time.monotonic() - began_s < LIMIT_S, f"no step of {run_dir}"
        time.sleep(0.05)
    taken_s = time.monotonic() - began_s
    rollart("cancel", str(run_dir))
    return taken_s


def page(taken: dict[str, list[float]], ratio: float) -> list[str]:
    rows = [[f"`launch.mode: {mode}`", *(f"{seconds:.1f}" for seconds in taken[mode])] for mode in MODES]
    return [
        "# One job or separate jobs: time to the first step",
        "",
        "The quickstart with a ready model and without validation, from the call of `rollart-hpc submit` to the first",
        "committed step, in seconds. All nodes of the development cluster are free, so separate jobs can only lose:",
        "they are submitted when the controller is up. Measured alternately on 2 shared CPU cores by:",
        "",
        "```",
        "make acceptance-jobs",
        "```",
        "",
        *table(["", *(f"run {number + 1}" for number in range(len(taken["het"])))], rows),
        "",
        f"Median ratio, separate jobs over one job: {ratio:.2f}.",
    ]
