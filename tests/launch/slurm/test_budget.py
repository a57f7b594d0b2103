"""The time a job has left, with a squeue that says what it is told."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rollart_hpc.config.load import load, load_site
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.slurm.allocation import Allocation
from rollart_hpc.launch.slurm.budget import Budget
from rollart_hpc.launch.slurm.commands import Slurm
from rollart_hpc.launch.slurm.place import SlurmPlace
from rollart_hpc.launch.slurm.satellites import Satellites
from rollart_hpc.rundir import RunDir

LIMIT_S = 60
SIGNAL_S = 600.0


@pytest.mark.parametrize(
    ("left", "save_s"),
    [
        ("2:00:00", 560.0),  # Slurm's signal came before squeue told of a shorter limit: job.signal_s is left
        ("8:20", 460.0),
        ("0:50", 25.0),
    ],
)
def test_a_checkpoint_may_take_the_time_that_is_left_but_for_the_end_of_the_job(
    left: str, save_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho {left}\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    budget = Budget(Slurm(), 12, SIGNAL_S)
    deadline_s = time.monotonic() + LIMIT_S
    while budget.left_s() == float("inf"):
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    site = load_site("dev")
    allocation = Allocation(12, (12, 13, 14), {}, 0)
    config = load("quickstart")
    run, plan, slurm = RunDir(tmp_path), make_plan(config, site), Slurm()
    satellites = Satellites(run, config, plan, site, slurm, print)
    place = SlurmPlace(run, config, plan, site, allocation, slurm, budget, satellites)
    assert save_s - LIMIT_S < place.save_s(60.0) <= save_s
