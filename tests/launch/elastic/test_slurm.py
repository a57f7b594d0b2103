"""Elastic workers as jobs, with a cluster that behaves as told; a real one is in tests/slurm."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollart_hpc.config.load import load, load_site
from rollart_hpc.config.resolved import write_resolved
from rollart_hpc.launch.elastic import slurm as module
from rollart_hpc.launch.elastic.slurm import SlurmWorkers
from rollart_hpc.launch.elastic.submit import parameters
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.commands import Slurm
from rollart_hpc.rundir import RunDir

LIMIT_S = 60
CONFIG = load(
    "quickstart", ["reward.elastic.max_workers=4", "reward.cpus=2", "job.account=rl", "job.dependency=afterok:1"]
)


@pytest.fixture
def put(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(module, "ASK_EVERY_S", 0.2)

    def write(name: str, body: str) -> None:
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    return write


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "a run").create()
    write_resolved(run.config, CONFIG)
    write_resolved(run.site, load_site("dev"))
    return run


@pytest.fixture
def workers(run: RunDir, put: Callable[[str, str], None]) -> Iterator[SlurmWorkers]:
    """Its thread is gone before the next test brings another squeue."""
    workers = SlurmWorkers(run, CONFIG, Slurm())
    yield workers
    workers.close()
    until(lambda: not any(thread.name == "elastic" for thread in threading.enumerate()))


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def test_jobs_are_submitted_without_this_job_s_variables_and_followed_to_their_end(
    run: RunDir, workers: SlurmWorkers, put: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("SBATCH_PARTITION", "elsewhere")
    monkeypatch.setenv("SLURM_CONF", "/its/slurm.conf")
    put("srun", "")
    put("sbatch", f"env > '{tmp_path}/env'; cp \"$1\" '{tmp_path}/script'; echo Submitted batch job 77")
    put("squeue", f"printf '77\\x1f%s\\n' $(cat '{tmp_path}/state')")
    put("scancel", f"echo \"$@\" >> '{tmp_path}/cancelled'")
    (tmp_path / "state").write_text("PENDING")
    workers.request(1)
    assert workers.num_requested == 1
    until(lambda: workers.num_pending == 1)
    assert [line.job for line in record.read(run) if isinstance(line, record.ElasticJob)] == [77]
    variables = (tmp_path / "env").read_text().splitlines()
    assert "SLURM_CONF=/its/slurm.conf" in variables
    assert not [line for line in variables if line.startswith(("SLURM_JOB_ID=", "SBATCH_"))]
    assert "#SBATCH --partition=cpu\n" in (tmp_path / "script").read_text()
    (tmp_path / "state").write_text("RUNNING")
    until(lambda: workers.num_pending == 0)
    assert workers.num_requested == 1
    (tmp_path / "state").write_text("FAILED")
    until(lambda: workers.num_requested == 0)
    assert workers.failures() == ["job 77 ended as FAILED"] and workers.failures() == []
    workers.end()
    assert "-reward" in (tmp_path / "cancelled").read_text()


def test_a_failed_submission_is_told(workers: SlurmWorkers, put: Callable[[str, str], None]) -> None:
    put("srun", "")
    put("sbatch", "echo 'sbatch: error: no' >&2; exit 1")
    workers.request(2)
    until(lambda: workers.num_requested == 0)
    assert len(workers.failures()) == 1


def test_after_a_timeout_a_job_in_the_queue_is_ours(
    run: RunDir, workers: SlurmWorkers, put: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One id was told before sbatch fell silent; squeue knows of another, and of one that is over."""
    monkeypatch.setattr(module, "SUBMIT_S", 1.0)
    monkeypatch.setattr(module, "python", lambda *_: ["sh", "-c", "echo 77; exec sleep 60"])
    put("squeue", r"printf '76\037COMPLETED\n77\037RUNNING\n78\037PENDING\n'")
    workers.request(2)
    until(lambda: workers.num_pending == 1 and workers.num_requested == 2)
    assert [line.job for line in record.read(run) if isinstance(line, record.ElasticJob)] == [77, 78]
    assert workers.failures() == []


def test_what_a_worker_s_job_asks_for(run: RunDir) -> None:
    site = load_site("dev")
    site.classes["cpu"].max_minutes = 30
    asked = parameters(CONFIG, site, run)
    assert (asked["partition"], asked["cpus_per_task"], asked["time"], asked["mem"]) == ("cpu", 2, 30, "1024M")
    further = asked["additional_parameters"]
    assert further["account"] == "rl" and "dependency" not in further
