"""Chaos as a user starts it, against a live run on this machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

ROLES = ("controller", "trainer", "engine", "env", "reward", "relay")


def test_every_role_is_hit_and_every_step_is_trained_exactly_once(run):
    run.start("steps=100000", "validation.plays=0", "timeouts.silence_s=4")
    run.until_step(3)
    command = [sys.executable, "-m", "rollart_hpc.cli", "chaos", str(run.directory)]
    options = [
        "--seed",
        "3",
        "--for",
        "5m",
        "--acts",
        "6",
        "--every",
        "0.1",
        "--kinds",
        "kill",
        "cut",
        "corrupt",
        "--json",
    ]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr + run.logs()
    summary = json.loads(done.stdout)
    assert not summary["problems"] and not summary["refused"]
    assert set(summary["acts"]) == set(ROLES) and summary["num_recovered"] == summary["num_acts"] == len(ROLES)
    assert summary["steps_after"] > summary["steps_before"] > 0
    lines = run.lines("chaos.jsonl")
    assert [line["what"] for line in lines].count("act") == summary["num_acts"]
    assert lines[0]["what"] == "began" and lines[-1] == {**lines[-1], "what": "ended", "is_ok": True}
