"""Weights over MPI: three relays' worth of ranks under a real mpiexec, and what happens when one of them fails."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.errors import SiteError
from rollart_hpc.launch.leader import find_mpiexec
from tests.weights.world import DEADLINE_S

LIMIT_S = 180


def why_not() -> str:
    try:
        find_mpiexec()
    except SiteError as error:
        return str(error)
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py is not installed"
    tried = subprocess.run(
        [sys.executable, "-c", "from mpi4py import MPI"], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip().splitlines()[-1] if tried.returncode else ""


@pytest.fixture(scope="module", autouse=True)
def mpi_is_here() -> None:
    if reason := why_not():
        pytest.skip(f"WEIGHTS OVER MPI ARE NOT TESTED: {reason}")


def run_world(directory: Path, spoil: str) -> list[list[dict[str, Any]]]:
    """What each of three ranks told. A rank that stopped itself goes on when the others are through."""
    here = Path(__file__)
    command = [find_mpiexec(), "-n", "3", sys.executable, str(here.with_name("world.py")), str(directory), spoil]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(here.parents[2])}
    done = subprocess.run(
        command, env=environment, timeout=LIMIT_S, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        check=False,
    )  # fmt: skip
    files = [directory / f"rank-{rank}.jsonl" for rank in range(3)]
    assert all(file.exists() for file in files), done.stdout
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]


def test_epochs_go_over_mpi_until_a_rank_gives_up_and_over_gloo_from_then_on(tmp_path: Path) -> None:
    source, spoiler, other = run_world(tmp_path, "raise")
    assert [line["collective"] for line in source] == ["mpi", "mpi", "gloo", "", "gloo"]  # the third is not everyone's
    assert [line["outcome"] for line in (*source[:3], source[4])] == ["good"] * 4
    assert "TransferError" in source[3]["outcome"] and "TransferError" in other[3]["outcome"]
    assert "no room here" in spoiler[2]["outcome"]
    assert [ranks[-1]["outcome"] for ranks in (source, spoiler, other)] == ["good"] * 3


def test_a_stopped_rank_breaks_the_epoch_by_its_deadline_and_the_others_go_on_over_gloo(tmp_path: Path) -> None:
    source, stopped, other = run_world(tmp_path, "stop")
    assert "epoch" not in stopped[-1], "the stopped rank told nothing after it was stopped"
    for rank in (source, other):
        assert "TransferError" in rank[-2]["outcome"]
        assert (rank[-1]["outcome"], rank[-1]["collective"]) == ("good", "gloo")
    assert source[-2]["seconds"] < 20 * DEADLINE_S
    with pytest.raises(ProcessLookupError):  # mpiexec ended it with the others
        os.kill(stopped[-1]["pid"], signal.SIGCONT)
