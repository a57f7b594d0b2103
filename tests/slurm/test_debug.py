"""`debug` in an allocation of a real Slurm, with a prompt that is typed into."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollart_hpc.devcluster.cluster import Cluster
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.queue import job_ids, live_jobs
from tests.slurm.submitted import LIMIT_S, SLOWLY, SMALL, Submitted

TYPED = 'status\nlogs supervisor\necho "within job $SLURM_JOB_ID of $SLURM_HET_SIZE parts"\nexit\n'


@pytest.fixture
def run(cluster: Cluster, tmp_path: Path, raw_model: Path) -> Iterator[Submitted]:
    one = Submitted(cluster, tmp_path / "a run", raw_model)
    yield one
    cluster.slurm.ask("scancel", *map(str, job_ids(one.run)))


def test_all_roles_start_the_prompt_answers_and_nothing_is_left(run: Submitted) -> None:
    command = (
        sys.executable, "-m", "rollart_hpc.cli", "debug", str(SMALL), "--site", "dev", "--run-dir", str(run.run.path),
        "model.kind=directory", f"model.path={run.model}", "steps=1000", "validation.plays=0", "checkpoint.every=0",
        "job.sbatch={nice: 7, kill-on-invalid-dep: yes}", SLOWLY,
    )  # fmt: skip
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/"
    ) as prompt:
        run.until(lambda: prompt.poll() is not None or run.ledger(), "a step")
        assert prompt.poll() is None, prompt.communicate()
        (began,) = run.begun()
        known = run.cluster.slurm.records("show", "job", str(began.job))
        fields = {"name": "%j", "nodes": "%N"}
        steps = {row["name"]: row["nodes"] for row in run.cluster.slurm.table("squeue", fields, "--steps")}
        said, _ = prompt.communicate(TYPED, timeout=LIMIT_S)
    assert prompt.returncode == 0, said
    assert began.held_by == "prompt" and {part["Nice"] for part in known} == {"7"}
    assert "running, attempt 1" in said and "attempt 1 begins" in said
    assert f"within job {began.job} of 3 parts" in said and "saving a checkpoint" in said
    assert steps["supervisor"] == run.hosts("cpu")[0], "not on the host of the prompt"
    run.until(lambda: not run.processes(), "the end of all steps")
    run.until(lambda: not live_jobs(run.cluster.slurm, job_ids(run.run), []), "the end of the allocation")
    assert run.run.newest_checkpoint() and not run.run.store_root.exists()
    assert [line.state for line in record.read(run.run) if isinstance(line, record.Ended)] == ["drained"]
