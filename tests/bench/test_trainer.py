from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rollart_hpc.bench.trainer import Result, Settings
from rollart_hpc.errors import UserError
from tests.trainers.plain import make_model


def test_the_trainer_is_measured_against_a_bare_loop(tmp_path: Path) -> None:
    """In a process of its own: it opens the ranks' group."""
    model = make_model(tmp_path / "model")
    command = [sys.executable, "-m", "rollart_hpc.cli", "bench", "trainer", "--json", "--model", str(model)]
    done = subprocess.run(
        [*command, "--samples", "8", "--tokens", "16", "--microbatch", "64", "--pairs", "2"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["bench"], found["trainer"], found["tokens"]) == ("trainer", "fsdp", 128)
    assert len(found["tokens_per_s"]) == len(found["raw_tokens_per_s"]) == 2
    assert found["ratio_to_raw"] > 0


def test_the_median_of_pairs_counts() -> None:
    result = Result(Settings(), ours=[90.0, 10.0, 100.0], raw=[100.0, 100.0, 100.0])
    assert result.ratio_to_raw == 0.9
    assert "median ratio to a bare torch loop: 0.900" in result.as_text()


@pytest.mark.parametrize("wrong", [{"samples": 3}, {"sample_tokens": 1}, {"pairs": 0}])
def test_settings_that_would_measure_nothing(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="is too small"):
        Settings(**wrong)


def test_a_directory_without_a_model(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rollart_hpc.cli", "bench", "trainer", "--model", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "it has no config.json" in done.stderr
