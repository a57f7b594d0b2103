"""The development cluster as a user has it: up, jobs of several people, down with everything."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rollart_hpc.devcluster import cluster as clusters
from rollart_hpc.devcluster.cluster import Cluster
from rollart_hpc.errors import UserError
from rollart_hpc.launch.slurm.limits import Limits

ROOT = Path(__file__).resolve().parents[2]
LAUNCHER = ROOT / "launchers" / "devcluster"
LIMIT_S = 120


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited too long for {what}"
        time.sleep(0.1)


def launch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([LAUNCHER, *arguments], capture_output=True, text=True, check=False, timeout=LIMIT_S)


def test_partitions_nodes_and_gpus(cluster: Cluster) -> None:
    fields = {"partition": "%R", "nodes": "%D", "gres": "%G"}
    rows = {row["partition"]: (row["nodes"], row["gres"]) for row in cluster.slurm.table("sinfo", fields)}
    assert rows["cpu"] == ("4", "(null)")
    assert rows["h800"][0] == "2" and rows["h800"][1].startswith("gpu:h800:8")
    assert rows["h20"][0] == "2" and rows["h20"][1].startswith("gpu:h20:8")
    tiers = {r["PartitionName"]: int(r["PriorityTier"]) for r in cluster.slurm.records("show", "partition")}
    assert tiers["urgent"] > tiers["h800"]


def test_a_het_job_of_an_ordinary_user_runs_python_and_sees_its_gpus(cluster: Cluster) -> None:
    step = "srun --het-group=1 -N1 -n1 -c1 --mem=100 --gres=gpu:2 sh -c 'echo $SLURM_STEP_GPUS'"
    script = f"#!/bin/bash -l\nid -un\n{sys.executable} -c 'import rollart_hpc'\n{step}\n"
    components = ["-pcpu", "-N1", "-n1", "--mem=100", ":", "-ph800", "-N1", "-n1", "--mem=100", "--gres=gpu:2"]
    done = cluster.run("sh", "-c", f'cat > job.sh <<"E"\n{script}E\nexec sbatch --wait -o out "$@" job.sh', "sh",
                       *components, user="alice")  # fmt: skip
    output = cluster.run("cat", "out", user="alice").stdout
    assert (done.returncode, output) == (0, "alice\n0,1\n"), done.stderr + output


def test_users_are_apart_and_staff_is_closed_to_them(cluster: Cluster) -> None:
    assert cluster.run("touch", "mine", user="alice").returncode == 0
    assert "Permission denied" in cluster.run("ls", str(cluster.files.homes / "alice"), user="bob").stderr
    assert "Permission denied" in cluster.run("cat", str(cluster.files.key), user="bob").stderr
    refused = cluster.run("sbatch", "-p", "staff", "--wrap", "true", user="bob")
    assert "not permitted to use this partition" in refused.stderr


def test_a_second_cluster_beside_it_ends_with_every_process_of_its_jobs(cluster: Cluster, tmp_path: Path) -> None:
    directory = Path(cluster.files.path.parent / "second")
    option = ("--dir", str(directory))
    assert launch("status", *option).returncode == 1
    done = launch("up", *option)
    assert done.returncode == 0, done.stderr
    assert launch("env", *option).stdout == f"export SLURM_CONF={directory}/slurm.conf\n"
    again = launch("up", *option)
    assert (again.returncode, "already up" in again.stderr) == (2, True)
    with pytest.raises(UserError, match="already up"):
        clusters.up(directory)

    second = clusters.find(directory)
    assert second is not None
    mark = tmp_path / "pid"
    wrap = f"setsid sleep 3600 & echo $$ > '{mark}'; wait"
    second.slurm.run("sbatch", "-o", "/dev/null", "--wrap", wrap, cwd=tmp_path)
    until(lambda: mark.exists() and bool(mark.read_text()), "the job's start")
    assert "sleep 3600" in second.run("ps", "-eo", "args").stdout
    namespace = f"/proc/{second.holder.pid}/ns/pid_for_children"
    inside = processes_in(Path(namespace).stat().st_ino)
    assert len(inside) > 10
    until(lambda: " Z" not in second.run("ps", "-eo", "pid,stat").stdout, "the orphans to be reaped")

    assert launch("down", *option).returncode == 0
    assert not directory.exists()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside), "the end of its processes")
    assert cluster.slurm.ask("sinfo").code == 0


def processes_in(inode: int) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "ns" / "pid").stat().st_ino == inode:
                found.append(int(process.name))
        except OSError:
            continue
    return found


def test_a_dead_controller_and_a_dead_node_come_back(own_cluster: Cluster) -> None:
    own_cluster.signal_daemon("slurmctld")
    own_cluster.signal_daemon("slurmd-h20n1")
    until(lambda: own_cluster.slurm.ask("scontrol", "ping").code != 0, "the end of slurmctld")
    own_cluster.start_daemon("slurmctld")
    own_cluster.start_daemon("slurmd-h20n1")
    step = own_cluster.slurm.run("srun", "-p", "h20", "-w", "h20n1", "-N1", "-n1", "printenv", "SLURMD_NODENAME",
                                 limit_s=LIMIT_S)  # fmt: skip
    assert step == "h20n1\n"


def test_accounting_knows_jobs_and_enforces_limits(accounting_cluster: Cluster) -> None:
    cluster = accounting_cluster
    assert (
        cluster.run("sacctmgr", "-i", "add", "qos", "small", "MaxTRESPerJob=cpu=4", "flags=DenyOnLimit").returncode == 0
    )
    assert cluster.run("sacctmgr", "-i", "modify", "user", "alice", "set", "qos+=small").returncode == 0
    refused = cluster.run("sbatch", "--qos=small", "-n8", "--wrap", "true", user="alice")
    assert "QOSMaxCpuPerJobLimit" in refused.stderr
    assert cluster.run("sbatch", "--wait", "-Jcounted", "--wrap", "true", user="alice", limit_s=LIMIT_S).returncode == 0

    def states() -> list[dict[str, str]]:
        return cluster.slurm.accounts("sacct", ["User", "Account", "State"], "--allusers", "-X", "--name=counted")

    limits = Limits.read(cluster.slurm, "alice", "rollartdev")
    assert [row["Account"] for row in limits.parents["dev"]] == ["dev", "root"] and "small" in limits.qos
    until(lambda: states() == [{"User": "alice", "Account": "dev", "State": "COMPLETED"}], "the job's record")
