"""A run as separate jobs (launch.mode: jobs): nodes are busy, preempted, dead, or joined by hand; it trains on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rollart_hpc.devcluster.cluster import Cluster
from rollart_hpc.launch.launcher import launcher_of_run
from rollart_hpc.launch.ownership import read_ownership
from rollart_hpc.observe.status import read_status
from tests.slurm.submitted import ALONE, LIMIT_S, SLOWLY, Submitted, cli

SITE = """
launcher: slurm
classes:
  cpu: {partition: fat.cpu, cpus: 32, memory_gb: 62, max_minutes: 120}
  h800: {partition: h800, gres: h800, gpu: h800, gpus: 8, cpus: 16, memory_gb: 62, max_minutes: 120}
  spot: {partition: spot, gres: h20, gpu: h20, gpus: 8, cpus: 16, memory_gb: 62, max_minutes: 120}
serves: {cpu: cpu, compute: h800, bandwidth: spot}
network: {control: lo, data: lo}
"""
KILL_NODE = """
import os, signal, sys
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        if f"SLURMD_NODENAME={sys.argv[1]}".encode() in open(f"/proc/{pid}/environ", "rb").read().split(b"\\0"):
            os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass
"""


class Jobs(Submitted):
    def hold(self, partition: str, host: str) -> str:
        """A job of somebody else that needs a whole node."""
        options = (f"--partition={partition}", f"--nodelist={host}", "--exclusive", "--time=60", "--output=/dev/null")
        return self.cluster.slurm.run("sbatch", "--parsable", *options, "--wrap=sleep 3600").strip()

    def host(self, unit: str) -> str:
        """Where the job of a unit runs; empty if it does not."""
        rows = launcher_of_run(self.run).watch(self.run).look().jobs
        return next((row.nodes for row in rows if row.unit == unit and row.state == "RUNNING"), "")

    def num_engines(self, pool: str) -> int:
        status = read_status(self.run.status)
        return status.pools[pool].engines if status is not None and pool in status.pools else 0

    def until_engines(self, pool: str, count: int) -> None:
        self.until(lambda: self.num_engines(pool) == count, f"{count} engines of pool {pool}")

    def all_started(self) -> dict[str, str]:
        """The incarnation of every process."""
        owner = read_ownership(self.run)
        assert owner is not None
        return {name: proc.incarnation for name, proc in owner.procs.items()}

    def started(self) -> dict[str, str]:
        """The same without those of the preemptible node and of guests."""
        gone = ("spot", "bandwidth", "guest")
        return {name: started for name, started in self.all_started().items() if not any(g in name for g in gone)}


def test_nodes_come_and_go_and_training_goes_on(own_mixed_cluster: Cluster, tmp_path: Path, raw_model: Path) -> None:
    site = tmp_path / "spot.yaml"
    site.write_text(SITE)
    run = Jobs(own_mixed_cluster, tmp_path / "a run", raw_model, str(site))
    stays, goes = (run.hold("h20", host) for host in ("h20n1", "h20n2"))
    run.submit("launch.mode=jobs", "steps=100000", "validation.plays=0", "timeouts.silence_s=5", SLOWLY, ALONE)
    it_trains_while_a_class_is_busy(run)
    run.cluster.slurm.run("scancel", goes)
    run.until_engines("bandwidth", 1)
    everything_else = run.started()
    a_preempted_job_comes_back_and_join_adds_a_node_meanwhile(run, stays)
    a_dead_node_of_engines_costs_nothing_else(run)
    assert run.started() == everything_else, run.told()
    assert run.run.last_attempt() == 1 and {line["attempt"] for line in run.ledger()} == {1}
    nothing_is_left_after_the_end(run, {"h800", "spot"})


def it_trains_while_a_class_is_busy(run: Jobs) -> None:
    run.until_steps(2)
    status = run.status()
    pending = [row for row in status["jobs"] if row["unit"] == "spot-0"]
    assert [row["state"] for row in pending] == ["PENDING"] and "Resources" in status["reason"], status
    assert "1 job in partition spot" in status["reason"]


def a_preempted_job_comes_back_and_join_adds_a_node_meanwhile(run: Jobs, other: str) -> None:
    """The node of the other job becomes free, so that there is one to come back to."""
    first = run.host("spot-0")
    run.hold("h20", first)
    run.until_engines("bandwidth", 0)
    join_adds_a_node(run)
    run.cluster.slurm.run("scancel", other)
    before = len(run.ledger())
    run.until_engines("bandwidth", 1)
    assert run.host("spot-0") != first
    run.until_steps(before + 1)


def join_adds_a_node(run: Jobs) -> None:
    join = (sys.executable, "-m", "rollart_hpc.cli", "join", str(run.run.path), "--pool", "compute")
    share = ("--job-name=joiner", "--partition=l40s", "--gres=gpu:1", "--cpus-per-task=2", "--mem=4G")
    process = subprocess.Popen(run.cluster.command(("srun", *share, *join)), stdout=subprocess.DEVNULL)
    try:
        run.until_engines("compute", 2)
        run.until_steps(len(run.ledger()) + 1)
    finally:
        run.cluster.slurm.run("scancel", "--name=joiner")
        process.wait(LIMIT_S)
    run.until_engines("compute", 1)


def a_dead_node_of_engines_costs_nothing_else(run: Jobs) -> None:
    host = run.host("spot-0")
    run.cluster.signal_daemon(f"slurmd-{host}")
    run.cluster.run(sys.executable, "-c", KILL_NODE, host)
    run.until_engines("bandwidth", 0)
    run.until_steps(len(run.ledger()) + 1)


def nothing_is_left_after_the_end(run: Jobs, classes: set[str]) -> None:
    done = cli("cancel", str(run.run.path))
    assert done.returncode == 0 and done.stdout.startswith("cancelled"), done.stderr
    names = run.cluster.run("squeue", "--noheader", "--format=%j").stdout.split()
    assert not [name for name in names if name.startswith("rollart")]
    run.until(lambda: not run.processes(), "the end of all processes")
    newest = run.run.newest_checkpoint()
    assert newest and newest.step == run.ledger()[-1]["version"]
    assert set(run.status()["gpu_hours"]) == classes
