"""Chaos on a cluster: its victims are on other nodes, and job steps reach them."""

from __future__ import annotations

import json
from pathlib import Path

from rollart_hpc.devcluster.cluster import Cluster
from tests.slurm.submitted import Submitted, cli

ROLES = ("agent", "controller", "engine", "env")


def test_processes_and_agents_of_other_nodes_are_hit(cluster: Cluster, raw_model: Path, tmp_path: Path) -> None:
    run = Submitted(cluster, tmp_path / "a run", raw_model)
    run.submit("steps=100000", "validation.plays=0", "timeouts.silence_s=4")
    run.until_steps(3)
    acts = ("--acts", str(len(ROLES)), "--kinds", "kill", "--roles", *ROLES)
    done = cli("chaos", str(run.run.path), "--seed", "2", "--for", "5m", "--every", "0.1", "--json", *acts)
    assert done.returncode == 0, done.stdout + done.stderr + run.told()
    summary = json.loads(done.stdout)
    assert set(summary["acts"]) == set(ROLES) and not summary["refused"]
    assert summary["num_recovered"] == summary["num_acts"] and summary["steps_after"] > summary["steps_before"]
    assert cli("cancel", str(run.run.path)).returncode == 0
