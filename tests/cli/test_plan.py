from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def test_plan_for_people_and_for_programs(cli: Cli) -> None:
    text = cli("plan", "quickstart", "--site", "dev").stdout
    assert "1 h800     h800       1      3 CPUs, 2 GPUs, 5 GB  1 trainer, 1 engine, 1 relay" in text
    assert "GPU-hours at most 3 (h800 2, h20 1), cost at most 6.7; time limit 01:00:00" in text
    found = json.loads(cli("plan", "quickstart", "--site", "dev", "--json").stdout)
    assert (found["gpu_hours"], found["time_minutes"], found["roles"]["engine"]["gpus"]) == (3.0, 60, 2)
    assert [part["partition"] for part in found["components"]] == ["cpu", "h800", "h20"]
    assert "bandwidth: engine-bandwidth-0, relay-bandwidth" in cli("plan", "quickstart").stdout


def test_the_wrong_door_names_the_right_one(cli: Cli, tmp_path: Path) -> None:
    here = cli("run", "quickstart", "--site", "dev")
    assert here.returncode == 2 and "rollart-hpc submit" in here.stderr
    there = cli("submit", "quickstart", "--site", "local", "--dry-run")
    assert there.returncode == 2 and "rollart-hpc run" in there.stderr and there.stdout == ""


def test_what_is_impossible_is_an_error_without_slurm(cli: Cli) -> None:
    done = cli("submit", "quickstart", "--site", "dev", "--dry-run", "trainer.ranks=40")
    assert done.returncode == 2 and "a job may have 2" in done.stderr and done.stdout == ""


def test_a_plan_needs_no_model(cli: Cli) -> None:
    found = cli("plan", "qwen3-32b-h800-h20", "--site", "h800-h20", "--json")
    assert found.returncode == 0 and json.loads(found.stdout)["gpu_hours"] > 0
    assert "warning: model.path: empty" in found.stderr
    refused = cli("submit", "qwen3-32b-h800-h20", "--site", "h800-h20", "--dry-run")
    assert refused.returncode == 2 and "model.path: empty" in refused.stderr
