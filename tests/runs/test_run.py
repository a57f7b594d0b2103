"""A whole small run, and what it leaves behind."""

from __future__ import annotations

import json
import stat

import pytest

from rollart_hpc.observe import ledger
from rollart_hpc.roles.recording import replay
from rollart_hpc.rundir import RunDir
from tests.runs import home

pytestmark = pytest.mark.slow


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_run_trains_all_its_steps_and_leaves_nothing_running(run):
    run.start("observe.transcript_tokens=1", "observe.record_bytes=100000000")
    run.until_step(2)
    pids = run.pids()
    output = run.wait()
    status = run.status()

    assert status["state"] == "finished"
    assert status["step"] == status["policy_version"] == 4
    assert not [pid for pid in pids if is_alive(pid)]
    assert "report.html" in output and (run.directory / "report.html").stat().st_size > 10_000
    assert json.loads((run.directory / "trace.json").read_text())["traceEvents"]
    assert any((run.directory / "tensorboard").iterdir())

    assert status["staleness"]["max_trained"] <= status["staleness"]["bound"] == 1
    assert status["tasks"]["frozenlake"]["pool_share"] == {"compute": 1.0}
    assert status["tasks"]["sorting"]["pool_share"] == {"bandwidth": 1.0}
    assert all(task["score_first"] is not None and task["score_last"] is not None for task in status["tasks"].values())
    assert {"env", "engine", "trainer", "relay", "reward"} <= set(status["workers"])
    assert all(worker["lost"] == 0 for worker in status["workers"].values())
    assert status["weights"]["transport"] == "staged" and status["weights"]["transfers"] >= 4
    assert 0 < status["weights"]["exposed_s"] <= status["weights"]["total_s"]
    assert 0 <= status["wait"]["get_batch_share"] <= 1
    assert status["dropped"].get("surplus", 0) > 0

    lines = ledger.read(run.directory / "ledger.jsonl")
    assert len(lines) == 4 and not ledger.problems(lines, group_size=2, alpha=1)
    assert max(line["metrics"]["logprob_gap_max"] for line in run.steps()) < 1e-4
    first, last = (
        next(line for line in lines if line["task"] == "sorting" and line["version"] == version)
        for lines in [[line for line in run.lines("metrics.jsonl") if line["kind"] == "validation"]]
        for version in (0, 4)
    )
    assert first["each"]["seed"] == last["each"]["seed"] and len(set(first["each"]["seed"])) == first["plays"] == 4
    assert sum(last["each"]["reward"]) / 4 == pytest.approx(last["reward"])
    check_private(run.directory)
    home.check_transcripts(run)
    home.check_logprobs(run, home.check_export(run), version=4)
    home.check_eval(run)
    home.check_fork(run, step=2)
    replayed = replay(RunDir(run.directory).recording(1))
    assert replayed.version == 4 and replayed.commands > 100


def check_private(directory):
    for path in (directory, *directory.rglob("*")):
        if not path.is_symlink():
            assert not stat.S_IMODE(path.stat().st_mode) & 0o077, path


def test_direct_weights_from_two_trainer_ranks_while_a_task_is_in_trouble(run):
    """Weights go straight into the engines, two ranks train as one, rewards come with the queue and go, and what fails
    in a task stops nothing."""
    rates = {"reset_failure_rate": 0.1, "turn_error_rate": 0.05, "crash_rate": 0.05, "hang_rate": 0.02}
    trouble = [f"tasks.frozenlake.trouble.{key}={value}" for key, value in rates.items()]
    changes = ["weights.transport=direct", "trainer.ranks=2", "tasks.frozenlake.turn_timeout_s=3"]
    elastic = ["reward.workers=0", "reward.elastic={max_workers: 2, queue_per_worker: 8, idle_s: 0.5, settle_s: 0.2}"]
    run.start("steps=3", "validation.plays=0", *changes, *elastic, *trouble).wait()
    status = run.status()
    assert status["state"] == "finished" and status["step"] == 3
    assert status["weights"]["transport"] == "direct" and status["weights"]["transfers"] >= 6
    assert "relay" not in status["workers"] and status["workers"]["reward"]["joined"] >= 1
    assert max(line["metrics"]["logprob_gap_max"] for line in run.steps()) < 1e-4
    assert {"reset_failed", "env_error", "env_crashed", "env_timeout"} & set(status["dropped"])


def test_streamed_asynchronous_and_batched_synchronous_losses_are_equal_bit_for_bit(make_run):
    common = ["deterministic=true", "flow.redundancy=0", "steps=5", "validation.plays=0"]
    batched = make_run("batched").start("mode=sync", "flow.streaming=false", *common)
    batched.wait()
    latency = [f"tasks.{task}.trouble.turn_latency.std_s=0.1" for task in ("frozenlake", "sorting")]
    streamed = make_run("streamed").start("mode=rollart", "flow.alpha=0", *latency, *common)
    streamed.wait()

    def losses(one):
        return [line["metrics"]["loss"].hex() for line in one.steps()]

    def digests(one):
        return [line["digest"] for line in one.lines("ledger.jsonl")]

    assert len(losses(batched)) == 5
    assert losses(batched) == losses(streamed)
    assert digests(batched) == digests(streamed)
