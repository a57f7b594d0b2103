"""Submission to a real Slurm: the printed script, refusals before anything is sent, a run with elastic workers."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.devcluster.cluster import Cluster
from rollart_hpc.launch.slurm import record
from rollart_hpc.rundir import RunDir
from tests.slurm.submitted import SMALL, Submitted, cli


def queued(cluster: Cluster) -> set[str]:
    return {row["id"] for row in cluster.slurm.table("squeue", {"id": "%i"}, "--states=all")}


@pytest.mark.parametrize("site", ["dev", "single"])
def test_the_dry_run_s_output_passes_sbatch_unchanged(cluster: Cluster, tmp_path: Path, site: str) -> None:
    before = queued(cluster)
    directory = tmp_path / "a run of 100%"
    done = cli("submit", "quickstart", "--site", site, "--dry-run", "--run-dir", str(directory))
    assert done.returncode == 0 and "nothing was created or submitted" in done.stderr
    assert "GPU-hours at most 3" in done.stderr and not directory.exists()
    tested = cluster.slurm.ask("sbatch", "--test-only", stdin=done.stdout)
    assert tested.code == 0, tested.stderr
    asked = cli("submit", "quickstart", "--site", site, "--test-only", "--run-dir", str(directory))
    assert asked.returncode == 0 and "Slurm would start the job at 20" in asked.stdout, asked.stderr
    assert queued(cluster) == before and not directory.exists()


def test_what_would_not_run_is_refused_before_it_is_sent(accounting_cluster: Cluster, tmp_path: Path) -> None:
    cluster = accounting_cluster
    site = cluster.files.path.parent / "closed.yaml"
    site.write_text("base: dev\nclasses: {cpu: {partition: staff}}\n")
    site.chmod(0o644)
    for words in (
        ["add", "qos", "narrow", "MaxTRESPerUser=gres/gpu=2", "MaxWall=30"],
        ["modify", "user", "alice", "set", "qos+=narrow"],
    ):
        assert cluster.run("sacctmgr", "-i", *words).returncode == 0

    def refused(*arguments: str) -> str:
        command = [sys.executable, "-m", "rollart_hpc.cli", "submit", "quickstart", "--run-dir", "a run", *arguments]
        done = cluster.run(*command, user="alice")
        assert done.returncode == 2, (done.returncode, done.stderr)
        return done.stderr.partition("rollart-hpc:")[2]

    said = refused("--site", str(site), "job.account=other")
    assert "partition staff: is open only to group root, you are in alice" in said
    assert "you have no association with account other (yours: dev); set job.account=..." in said
    said = refused("--site", "dev", "job.qos=narrow")
    assert "QOS narrow: gres/gpu is limited to 2, this run needs 3" in said
    assert "QOS narrow: jobs may take 30 min, this one requests 60; set job.time_minutes=30" in said
    assert "you may not use QOS large" in refused("--site", "dev", "job.qos=large")
    assert queued(cluster) == set()


SITE = """
base: dev
prologue: export FROM_PROLOGUE=yes
epilogue: echo "$SLURMD_NODENAME $FROM_PROLOGUE $FROM_SITE" >> epilogues
network: {env: {FROM_SITE: "a value"}}
"""


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path, raw_model: Path) -> Iterator[Submitted]:
    one = Submitted(cluster, tmp_path / "a run", raw_model)
    yield one
    jobs = [str(line.job) for line in record.read(one.run) if isinstance(line, (record.Submitted, record.ElasticJob))]
    cluster.slurm.ask("scancel", *jobs)


def test_engines_on_two_nodes_rewards_from_zero_to_zero_prologue_and_epilogue(run: Submitted, tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text(SITE)
    done = cli(
        "submit", str(SMALL), "--site", str(tmp_path / "site.yaml"), "--wait", "--run-dir", str(run.run.path),
        "model.kind=directory", f"model.path={run.model}", "validation.plays=2", "reward.workers=0",
        "pools={compute: {engines: 2}, bandwidth: {engines: 0}}", "engine.cpus=9",
        "reward.elastic={max_workers: 2, queue_per_worker: 4, idle_s: 0.2, settle_s: 0.2}",
        "tasks.frozenlake.trouble.turn_latency.mean_s=0.5",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + run.told()
    assert "finished after 4 of 4 steps" in done.stdout and "rollart-hpc logs -f" in done.stdout
    assert len(run.hosts("h800")) == 2
    assert {node(run.run, f"engine-compute-{i}") for i in range(2)} == {"h800-0", "h800-1"}
    elastic = [line for line in record.read(run.run) if isinstance(line, record.ElasticJob)]
    came, went = (rewards(run.run, what) for what in ("worker_joined", "worker_left"))
    assert {line["name"] for line in came} <= {f"reward-job-{line.job}" for line in elastic} and came
    last_s = [line["time_s"] for line in lines(run.run) if line["kind"] == "step"][-1]
    assert any(line["time_s"] < last_s for line in went), run.told()  # while the run went on
    told = [line.split(maxsplit=1) for line in (run.run.path / "epilogues").read_text().splitlines()]
    hosts = {*run.hosts("cpu"), *run.hosts("h800")}
    assert {host for host, _ in told} == hosts and len(told) == 3
    assert {rest for _, rest in told} == {"yes a value"}
    a_finished_run_is_extended_with_other_values_and_followed_again(run)


def a_finished_run_is_extended_with_other_values_and_followed_again(run: Submitted) -> None:
    path = str(run.run.path)
    refused = cli("resume", path, "pools.compute.engines=1")
    assert refused.returncode == 2 and f"rollart-hpc resume '{path}' steps=8" in refused.stderr
    assert cli("resume", path, "steps=5", "pools.compute.engines=1", "validation.plays=0").returncode == 0
    done = cli("status", "-f", path)
    assert done.returncode == 0 and done.stdout.startswith("finished after 5 of 5 steps"), done.stderr + run.told()
    assert len(run.hosts("h800")) == 1 and run.begun()[-1].from_step == 4
    shown = cli("status", path).stdout
    assert "changed after step 4: steps 4 -> 5, validation.plays 2 -> 0, pools.compute.engines 2 -> 1" in shown
    assert "this cluster has no accounting" in shown and "GPU-hours on h800" in shown


def lines(run: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.metrics.read_text().splitlines()]


def events(run: RunDir) -> list[dict[str, Any]]:
    return [line for line in lines(run) if line["kind"] == "event"]


def rewards(run: RunDir, what: str) -> list[dict[str, Any]]:
    return [line for line in events(run) if line["what"] == what and line.get("role") == "reward"]


def node(run: RunDir, name: str) -> str:
    joined = next(line for line in events(run) if line["what"] == "worker_joined" and line["name"] == name)
    return joined["detail"].split(" on ")[1].split(",")[0]
