"""Separate jobs of other shapes: one job per class, a trainer over two nodes that is requeued alone, elastic engines
that come with the work and leave without it, jobs in containers, a job of engines that is near its time limit; and a
node that is lent to a run that is one heterogeneous job."""

from __future__ import annotations

import sys
from pathlib import Path

from rollart_hpc.devcluster.cluster import Cluster
from tests.slurm.submitted import SLOWLY
from tests.slurm.test_classes import IMAGE, STAND_IN
from tests.slurm.test_jobs import Jobs, join_adds_a_node, nothing_is_left_after_the_end

SITE = """
launcher: slurm
classes:
  cpu: {partition: fat.cpu, cpus: 32, memory_gb: 62, max_minutes: 120}
  h800: {partition: h800, gres: h800, gpu: h800, gpus: 1, cpus: 16, memory_gb: 62, max_minutes: 120}
  spot: {partition: spot, gres: h20, gpu: h20, gpus: 1, cpus: 16, memory_gb: 62, max_minutes: 120}
  l40s:
    {partition: l40s, gres: l40s, gpu: l40s, gpus: 4, cpus: 16, memory_gb: 31, max_minutes: 120,
     prologue: 'export NOTES="%(home)s/notes" PATH="%(home)s/bin:$PATH"',
     python: %(python)s, container: {kind: apptainer, image: %(image)s}}
serves: {cpu: cpu, compute: h800, bandwidth: spot}
network: {control: lo, data: lo}
"""
TASK = """
import os, time
from rollart_hpc.envs.frozenlake import FrozenLake
class Gated(FrozenLake):
    def reset(self, seed):
        while os.path.exists("{gate}"):
            time.sleep(0.1)
        return super().reset(seed)
"""
ELASTIC = "{max: 1, turns_per_engine: 1, settle_s: 0, idle_s: 3}"
PLAIN = "pools={compute: {engines: 1}, bandwidth: {engines: 1}}"
POOLS = f"pools={{compute: {{engines: 1, class: l40s, elastic: {ELASTIC}}}, bandwidth: {{engines: 2}}}}"


def test_a_job_per_class_a_trainer_that_is_requeued_alone_and_elastic_engines(
    own_mixed_cluster: Cluster, tmp_path: Path, raw_model: Path
) -> None:
    run, gate = submitted(own_mixed_cluster, tmp_path, raw_model, POOLS, "launch.mode=jobs", "launch.engine_jobs=class")
    run.until_engines("compute", 2)
    run.until_steps(1)
    nodes = {row["unit"]: row["nodes"] for row in run.status()["jobs"] if row["state"] == "RUNNING"}
    assert sorted(len(run.expand(hosts)) for hosts in nodes.values()) == [1, 1, 1, 2, 2], nodes
    jobs_of_a_class_run_in_its_container(tmp_path / "notes")
    the_trainer_is_requeued_alone(run)
    limited = run.job_of("engines-spot")
    run.cluster.slurm.run("scontrol", "update", f"JobId={limited}", "EndTime=now+95")
    gate.touch()
    run.until_engines("compute", 1)
    gate.unlink()
    run.until_engines("compute", 2)
    a_job_that_was_warned_gives_its_nodes_back_and_another_comes(run, limited)
    the_controller_s_job_is_requeued_and_finds_the_others(run)
    nothing_is_left_after_the_end(run, {"h800", "spot", "l40s"})


def jobs_of_a_class_run_in_its_container(notes: Path) -> None:
    """That of the engines that stay, and that of the elastic one. A stand-in for Apptainer notes its arguments."""
    calls = [path.read_text().splitlines() for path in notes.iterdir()]
    assert {"--nodes=l40s-0", "--nodes=l40s-1"} == {word for words in calls for word in words if "--nodes" in word}
    for words in calls:
        options, command = words[: words.index(IMAGE)], words[words.index(IMAGE) + 1 :]
        assert options[:3] == ["exec", "--nv", "--bind"] and "--hardware=l40s" in command


def a_job_that_was_warned_gives_its_nodes_back_and_another_comes(run: Shapes, job: int) -> None:
    """It does not hold GPUs until Slurm ends it."""
    run.until(lambda: run.state_of(job) == "COMPLETED", "the end of the job of engines, before its time limit")
    run.until(lambda: run.job_of("engines-spot") not in (0, job), "another job")
    run.until_engines("bandwidth", 2)
    run.until_steps(len(run.ledger()) + 1)


def the_controller_s_job_is_requeued_and_finds_the_others(run: Shapes) -> None:
    """They keep their nodes meanwhile."""
    units = ("trainer", "engines-l40s", "engines-spot")
    before, steps = {unit: run.job_of(unit) for unit in units}, len(run.ledger())
    run.cluster.slurm.run("scontrol", "requeue", str(run.job))
    run.until_begun(2)
    run.until_steps(steps + 1)
    assert {unit: run.job_of(unit) for unit in units} == before, run.told()


def the_trainer_is_requeued_alone(run: Shapes) -> None:
    """From the newest checkpoint on; engines and environments stay."""
    who = ("engine-compute-0", "engine-bandwidth", "env", "relay-l40s-0", "relay-spot")  # an elastic engine may go
    before, steps = run.incarnations(*who), len(run.ledger())
    run.cluster.slurm.run("scontrol", "requeue", str(run.job_of("trainer")))
    run.until(lambda: run.run.last_attempt() >= 2, "another attempt of the trainer")
    run.until(lambda: run.ledger()[-1]["attempt"] >= 2 and len(run.ledger()) > steps, "a step of the next attempt")
    assert len(before) >= 7 and run.incarnations(*who) == before, run.told()


def test_a_node_is_lent_to_a_heterogeneous_job(own_mixed_cluster: Cluster, tmp_path: Path, raw_model: Path) -> None:
    run, _ = submitted(own_mixed_cluster, tmp_path, raw_model, PLAIN, "trainer.ranks=1")
    run.until_steps(1)
    join_adds_a_node(run)
    nothing_is_left_after_the_end(run, {"h800", "spot"})


def submitted(cluster: Cluster, directory: Path, model: Path, *overrides: str) -> tuple[Shapes, Path]:
    """The run, and the file that keeps environments from starting while it exists."""
    site, gate = directory / "site.yaml", directory / "gate"
    site.write_text(SITE % {"home": directory, "python": sys.executable, "image": IMAGE})
    (directory / "notes").mkdir()
    (directory / "bin").mkdir()
    (directory / "bin" / "apptainer").write_text(STAND_IN)
    (directory / "bin" / "apptainer").chmod(0o755)
    (directory / "gated.py").write_text(TASK.format(gate=gate))
    run = Shapes(cluster, directory / "a run", model, str(site))
    run.submit(
        "trainer.ranks=2", "steps=100000", "validation.plays=0", "checkpoint.every=2", "timeouts.silence_s=5",
        "tasks.frozenlake.affinity=compute", f"tasks.frozenlake.environment={directory}/gated.py:Gated",
        "tasks.frozenlake.reset_timeout_s=600", SLOWLY, *overrides,
    )  # fmt: skip
    return run, gate


class Shapes(Jobs):
    def incarnations(self, *prefixes: str) -> dict[str, str]:
        return {name: started for name, started in self.all_started().items() if name.startswith(prefixes)}

    def job_of(self, unit: str) -> int:
        """The one that runs; 0 if none does."""
        rows = self.status()["jobs"]
        return next((row["job"] for row in rows if row["unit"].startswith(unit) and row["state"] == "RUNNING"), 0)

    def state_of(self, job: int) -> str:
        return self.cluster.slurm.records("show", "job", str(job))[0]["JobState"]

    def expand(self, hosts: str) -> list[str]:
        return self.cluster.slurm.run("scontrol", "show", "hostnames", hosts).split()
