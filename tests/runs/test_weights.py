"""Failures of what carries weights, by name, in whole runs."""

from __future__ import annotations

import os
import re
import signal

import pytest

from tests.runs.test_failures import SLOWLY, check_exactly_once
from tests.weights.test_mpi import why_not

pytestmark = pytest.mark.slow


def rank_pid(run, name):
    """Of a rank of an MPI world: its launcher's pid is all the supervisor knows."""
    text = (run.directory / "attempts" / "attempt_1" / "logs" / f"{name}.log").read_text()
    return int(re.search(r"MPI world, pid (\d+)", text)[1])


def test_a_killed_rank_of_the_mpi_world_then_a_stopped_relay(run):
    """The world ends and its relays go on over gloo, counted; the stopped relay is found out, ended and replaced."""
    if reason := why_not():
        pytest.skip(f"THE MPI WORLD OF RELAYS IS NOT TESTED: {reason}")
    run.start(
        "weights.collective=mpi", "steps=8", "validation.plays=0", "timeouts.silence_s=5", "weights.deadline_s=5",
        *SLOWLY,
    )  # fmt: skip
    run.until_step(2)
    assert run.live_status()["weights"]["fallbacks"] == 0
    os.kill(rank_pid(run, "relay-bandwidth"), signal.SIGKILL)
    run.until(lambda: run.live_status()["weights"]["fallbacks"] > 0, "a transfer over gloo")
    os.kill(run.pid("relay-compute"), signal.SIGSTOP)
    output = run.wait()
    status = run.status()
    assert status["state"] == "finished" and status["step"] == 8 and status["attempt"] == 1
    assert "the MPI world of" in output and "relay-compute does not answer: ending it" in output
    relays = status["workers"]["relay"]
    assert relays["lost"] >= 3 and relays["joined"] - relays["lost"] == 2
    check_exactly_once(run, steps=8)
