"""`rollart-hpc bench modes` as a user calls it: every mode trains for real."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollart_hpc.config.schema import MODES


@pytest.mark.slow
def test_the_five_modes_side_by_side(base_model: Path) -> None:
    command = [sys.executable, "-m", "rollart_hpc.cli", "bench", "modes", "--json", "--model", str(base_model)]
    command += ["--std", "0.05", "--steps", "2", "--mean", "0.05"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["bench"], found["mean_s"]) == ("modes", 0.05)
    (row,) = found["rows"]
    assert row["std_s"] == 0.05
    assert list(row["step_s"]) == list(MODES) and all(seconds > 0 for seconds in row["step_s"].values())
    assert set(row["speedup_over_sync"]) == set(MODES) and row["speedup_over_sync"]["sync"] == 1.0
    assert row["trajectory_over_batched"] == pytest.approx(row["step_s"]["sync"] / row["step_s"]["sync_plus"])
