"""Failures of a cluster by name, one after the other in one run: what breaks, and that the run goes on or is gone."""

from __future__ import annotations

import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollart_hpc.devcluster.cluster import Cluster
from rollart_hpc.launch.slurm import record
from tests.slurm.submitted import ALONE, SLOWLY, Submitted, cli, until

STEPS = 1000


@pytest.fixture
def run(own_cluster: Cluster, raw_model: Path) -> Iterator[Submitted]:
    """Where other users may look if its own mode lets them."""
    parent = own_cluster.files.path.parent / "runs"
    parent.mkdir()
    parent.chmod(0o755)  # whatever the umask
    one = Submitted(own_cluster, parent / "a run", raw_model)
    yield one.submit(
        f"steps={STEPS}", "validation.plays=0", "checkpoint.every=1", "timeouts.silence_s=10", SLOWLY, ALONE
    )
    shutil.rmtree(parent, ignore_errors=True)


def test_slurmctld_down_drained_node_dead_slurmd_other_users_scancel(run: Submitted) -> None:
    run.until_steps(1)
    another_user_can_neither_read_nor_join(run)
    slurmctld_is_down_for_30_s_and_the_run_goes_on(run)
    drained, dead = run.hosts("h20"), run.hosts("h800")
    a_drained_node_is_used_to_the_end(run, drained[0])
    dead_slurmd_under_an_engine_requeues_and_the_old_attempt_is_fenced(run, dead[0])
    assert not {*drained, *dead} & {*run.hosts("h20"), *run.hosts("h800")}
    cancel_saves_a_checkpoint_and_resume_goes_on_from_it(run)
    a_requeued_run_that_waits_can_be_cancelled(run)
    scancel_leaves_nothing(run)


def another_user_can_neither_read_nor_join(run: Submitted) -> None:
    assert stat.S_IMODE(run.run.path.stat().st_mode) == 0o700
    assert run.cluster.run("ls", str(run.run.path.parent), user="bob").returncode == 0
    assert "Permission denied" in run.cluster.run("ls", str(run.run.path), user="bob").stderr
    join = (sys.executable, "-m", "rollart_hpc.cli", "join", str(run.run.path), "reward")
    refused = run.cluster.run(*join, user="bob")
    assert refused.returncode != 0 and "joining" not in refused.stderr


def slurmctld_is_down_for_30_s_and_the_run_goes_on(run: Submitted) -> None:
    began_s = time.monotonic()
    run.cluster.signal_daemon("slurmctld")
    before = len(run.ledger())
    run.until(lambda: time.monotonic() - began_s > 30 and len(run.ledger()) > before, "a step without slurmctld")
    run.cluster.start_daemon("slurmctld")
    until(lambda: run.cluster.run("scontrol", "ping").stdout.count("UP"), "slurmctld")
    # A node that dies before it has told the new slurmctld of itself is never declared dead.
    until(lambda: not {"unknown", "*"} & {*node_states(run)}, "all nodes")
    assert run.status()["state"] == "running" and len(run.begun()) == 1


def node_states(run: Submitted) -> list[str]:
    """Of all nodes; "*" for one that does not answer."""
    states = run.cluster.run("sinfo", "--noheader", "--Node", "--format=%T").stdout.split()
    return [part for state in states for part in ([state[:-1], "*"] if state.endswith("*") else [state])]


def a_drained_node_is_used_to_the_end(run: Submitted, host: str) -> None:
    run.cluster.slurm.run("scontrol", "update", f"NodeName={host}", "State=DRAIN", "Reason=test")
    run.until_steps(len(run.ledger()) + 1)
    assert len(run.begun()) == 1


def dead_slurmd_under_an_engine_requeues_and_the_old_attempt_is_fenced(run: Submitted, host: str) -> None:
    old = run.processes()
    assert len(old) > 10
    run.cluster.signal_daemon(f"slurmd-{host}")
    run.until_begun(2)
    run.until_state("running", attempt=2)
    run.until(lambda: not old & run.processes(), "the end of what survived on the dead node")
    run.until_steps(len(run.ledger()) + 1)
    assert run.ledger()[-1]["attempt"] == 2
    assert host in record.bad_hosts(record.read(run.run))


def cancel_saves_a_checkpoint_and_resume_goes_on_from_it(run: Submitted) -> None:
    before, starts = run.begun()[-1].job, len(run.begun())
    done = cli("cancel", str(run.run.path))
    assert done.returncode == 0 and "save a checkpoint" in done.stderr and done.stdout.startswith("cancelled")
    assert not run.processes() and not run.run.store_root.exists()
    newest = run.run.newest_checkpoint()
    assert newest and newest.step == run.ledger()[-1]["version"]
    assert job_states(run, before) == {"CANCELLED"}
    assert cli("resume", str(run.run.path)).returncode == 0
    run.until_begun(starts + 1)
    assert run.job != before and run.begun()[-1].from_step == newest.step
    run.until_steps(len(run.ledger()) + 1)


def job_states(run: Submitted, job: int) -> set[str]:
    return {row["JobState"] for row in run.cluster.slurm.records("show", "job", str(job))}


def a_requeued_run_that_waits_can_be_cancelled(run: Submitted) -> None:
    starts, job, attempt = len(run.begun()), run.job, run.run.last_attempt()
    run.cluster.slurm.run("scontrol", "requeue", str(job))
    run.until_state("pending")
    done = cli("cancel", str(run.run.path))
    assert done.returncode == 0 and done.stdout.startswith("cancelled"), done.stderr
    assert job_states(run, job) == {"CANCELLED"} and not run.processes()
    assert cli("resume", str(run.run.path)).returncode == 0
    run.until_begun(starts + 1)
    run.until_state("running", attempt=attempt + 1)


def scancel_leaves_nothing(run: Submitted) -> None:
    run.cluster.slurm.run("scancel", str(run.job))
    run.until(lambda: not run.processes(), "the end of all processes")
    run.until_state("cancelled")
    assert run.status()["state"] == "cancelled"
    shutil.rmtree(run.run.store_root, ignore_errors=True)  # KillWait may be too short for the relays to do so
