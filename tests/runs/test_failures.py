"""Failures by name: what dies, and that the run ends with all its steps all the same."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys

import pytest

from rollart_hpc.observe import ledger
from rollart_hpc.rundir import RunDir

pytestmark = pytest.mark.slow

STEPS = 6
WORKERS = {"env": "env-0", "engine": "engine-compute-0", "reward": "reward-0", "relay": "relay-bandwidth"}
SLOWLY = ["tasks.frozenlake.trouble.turn_latency.mean_s=0.4"]  # so that a step takes longer than a kill


def check_exactly_once(run, steps=STEPS):
    lines = ledger.read(run.directory / "ledger.jsonl")
    assert [line.version for line in ledger.surviving(lines)] == list(range(1, steps + 1))
    assert not ledger.problems(lines, group_size=2, alpha=1)


def test_killed_env_worker_engine_reward_worker_and_relay(run):
    """All in one run: each is lost, its work is done elsewhere or again, and the run ends with all its steps."""
    run.start("steps=12", "validation.plays=0", "checkpoint.every=4", *SLOWLY)
    for number, name in enumerate(WORKERS.values()):
        run.until_step(1 + number)
        os.kill(run.pid(name), signal.SIGKILL)
    run.wait()
    status = run.status()
    assert status["state"] == "finished" and status["step"] == 12 and status["attempt"] == 1
    assert {role: status["workers"][role]["lost"] for role in WORKERS} == dict.fromkeys(WORKERS, 1)
    assert status["workers"]["env"]["joined"] == status["workers"]["reward"]["joined"] == 3
    assert status["staleness"]["max_trained"] <= 1
    check_exactly_once(run, steps=12)


def test_killed_trainer_then_killed_controller(run):
    """Each begins an attempt from the last committed checkpoint, and the run ends with all its steps."""

    def trainer():
        counts = run.live_status()["workers"]["trainer"]
        return counts["joined"], counts["lost"]

    run.start("steps=8", "validation.plays=0", *SLOWLY)
    run.until_step(3)
    os.kill(run.pid("trainer-0"), signal.SIGKILL)
    run.until(lambda: trainer() == (2, 1), "a new trainer")
    run.until(
        lambda: any(line["attempt"] == 2 and "step" in line for line in run.lines("ledger.jsonl")),
        "a step of attempt 2",
    )
    os.kill(run.pid("controller"), signal.SIGKILL)
    run.wait()
    status = run.status()
    assert status["state"] == "finished" and status["step"] == 8 and status["attempt"] == 3
    assert status["workers"]["controller"]["lost"] == 1 and status["workers"]["controller"]["joined"] == 2
    assert status["staleness"]["max_trained"] <= 1
    check_exactly_once(run, steps=8)


MEGATRON = ["trainer.kind=megatron", "trainer.options.tensor_parallel=2", "trainer.options.vocabulary_multiple=1"]


@pytest.mark.parametrize("kind", ["fsdp", "megatron"])
def test_a_trainer_rank_killed_in_the_middle_of_a_step(run, kind):
    """Not the one that talks to the controller: the others must notice, and all begin again from the checkpoint."""
    if kind == "megatron" and importlib.util.find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed: no run with it is tested")
    overrides = MEGATRON if kind == "megatron" else []
    # A step begins when the weights of the last one are everywhere, and waits seconds for its first groups.
    slowly = [
        f"tasks.{task}.trouble.turn_latency.mean_s={seconds}" for task, seconds in (("frozenlake", 1), ("sorting", 3))
    ]
    run.start(
        "steps=5", "validation.plays=0", "flow.alpha=0", "timeouts.silence_s=60", "trainer.ranks=2", *overrides, *slowly
    )
    run.until_step(3)  # checkpoints are made after even ones
    spans = RunDir(run.directory).trace_part(1, "trainer-0")
    run.until(lambda: '"version":3' in spans.read_text(), "the weights of step 3 to be given away")
    victim = run.pid("trainer-1")
    os.kill(victim, signal.SIGSTOP)  # rank 0 gets no further than into its next chunk of groups
    run.until(lambda: '"step":3,"got":"Chunk"' in spans.read_text(), "groups on their way through the ranks")
    os.kill(victim, signal.SIGKILL)
    run.wait()
    status = run.status()
    assert status["state"] == "finished" and status["step"] == 5 and status["attempt"] == 2
    assert status["workers"]["trainer"]["lost"] >= 1 and status["workers"]["trainer"]["joined"] == 4
    check_exactly_once(run, steps=5)


def test_everything_killed_then_resumed(run):
    run.start("mode=areal", f"steps={STEPS}", "validation.plays=0", *SLOWLY)
    run.until_step(3)
    pids = run.pids()
    run.end()  # the supervisor; its children die with it
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    run.resume(f"steps={STEPS + 1}", "trainer.lr=0.0005", "env.workers=1").wait()
    status = run.status()
    assert status["state"] == "finished" and status["step"] == STEPS + 1 and status["attempt"] == 2
    (change,) = status["changes"]
    assert change["keys"]["steps"] == [STEPS, STEPS + 1] and set(change["keys"]) == {
        "steps",
        "trainer.lr",
        "env.workers",
    }
    check_exactly_once(run, steps=STEPS + 1)


def test_cancelled_saves_and_can_be_resumed(run):
    run.start("mode=one_off", "steps=50", "validation.plays=0", *SLOWLY)
    run.until_step(2)
    subprocess.run([sys.executable, "-m", "rollart_hpc.cli", "cancel", str(run.directory)], check=True, timeout=120)
    assert run.process.wait(timeout=120) == 5
    assert run.status()["state"] in ("drained", "cancelled")
    done = len(run.steps())
    assert (run.directory / "checkpoints" / f"step_{done}").is_dir()
