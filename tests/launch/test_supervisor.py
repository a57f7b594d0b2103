"""The supervisor over real processes with a real hub and no work to do."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.config.resolved import write_resolved
from rollart_hpc.config.schema import (
    ElasticConfig,
    PoolConfig,
    RestartConfig,
    RewardConfig,
    RunConfig,
    TimeoutConfig,
    TrainerConfig,
)
from rollart_hpc.launch.ownership import start_ticks
from rollart_hpc.rundir import COMMITTED, RunDir

pytestmark = pytest.mark.slow

DRIVE = str(Path(__file__).with_name("drive.py"))
PATIENCE_S = 120.0
ROLES = {"env": 1, "engine": 2, "trainer": 2, "reward": 1, "relay": 2, "supervisor": 1}
SMALL_ROLES = {"env": 1, "trainer": 1, "reward": 1, "relay": 1, "supervisor": 1}


class Driven:
    """A supervisor process and what its run directory says."""

    def __init__(self, run: RunDir, process: subprocess.Popen[str], roles: dict[str, int]) -> None:
        self.run, self.process, self.roles = run, process, roles

    def owner(self) -> dict[str, Any]:
        return json.loads(self.run.supervisor.read_text()) if self.run.supervisor.exists() else {}

    def seen(self) -> dict[str, Any]:
        """By the controller."""
        path = self.run.path / "seen.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def procs(self) -> dict[str, Any]:
        return self.owner().get("procs", {})

    def noted(self, text: str) -> bool:
        log = self.run.log(1, "supervisor")
        return log.exists() and text in log.read_text()

    def until(self, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = condition()
            if found:
                return found
            if self.process.poll() is not None and not condition():
                raise AssertionError(f"the supervisor ended early: {self.process.communicate()[0]}")
            time.sleep(0.02)
        raise AssertionError(f"waited too long; seen {self.seen()}, owner {self.owner()}")

    def until_all_joined(self, attempt: int = 1) -> None:
        def all_joined() -> bool:
            seen = self.seen()
            return bool(seen) and seen["attempt"] >= attempt and seen["alive"] == self.roles

        self.until(all_joined)

    def kill(self, name: str) -> dict[str, Any]:
        before = self.procs()[name]
        os.kill(before["pid"], signal.SIGKILL)
        return dict(before)

    def until_replaced(self, name: str, before: dict[str, Any]) -> dict[str, Any]:
        def replacement() -> dict[str, Any] | None:
            now = self.procs().get(name)
            return now if now and now["incarnation"] != before["incarnation"] else None

        return dict(self.until(replacement))

    def end(self, code: int = 0) -> None:
        (self.run.path / "end").write_text(str(code))

    def wait(self) -> tuple[int, str]:
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, output

    def relays_left_by_themselves(self) -> bool:
        """They had the time to free the memory of their nodes."""
        return len([*self.run.path.glob("relay*.tidy")]) == self.roles["relay"]

    def left_over(self, pids: list[int], ticks: list[int]) -> list[int]:
        return [pid for pid, tick in zip(pids, ticks) if tick and start_ticks(pid) == tick]


Drive = Callable[..., Driven]


@pytest.fixture
def drive(tmp_path: Path) -> Iterator[Drive]:
    started: list[Driven] = []

    def begin(behaviour: dict[str, Any] | None = None, *, small: bool = False, **changes: Any) -> Driven:
        """`small`: no engines and one rank, where they don't matter."""
        engines, ranks = (0, 1) if small else (1, 2)
        config = RunConfig(
            pools={"compute": PoolConfig(engines), "bandwidth": PoolConfig(engines)},
            trainer=TrainerConfig(ranks=ranks),
            **{"timeouts": TimeoutConfig(), "restarts": RestartConfig(per_role=2, attempts=2), **changes},
        )
        run = RunDir(tmp_path / "a run").create()
        write_resolved(run.config, config)
        if behaviour:
            (run.path / "behaviour.json").write_text(json.dumps(behaviour))
        process = subprocess.Popen(
            [sys.executable, DRIVE, str(run.path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        started.append(Driven(run, process, SMALL_ROLES if small else ROLES))
        return started[-1]

    yield begin
    for driven in started:
        if driven.process.poll() is None:
            driven.process.kill()
        driven.process.communicate()
        driven.run.remove_store()


def commit(run: RunDir, step: int) -> None:
    run.checkpoint(step).mkdir()
    (run.checkpoint(step) / COMMITTED).write_text("{}")


def test_what_is_killed_is_started_again_and_a_run_that_finishes_leaves_nothing(drive: Drive) -> None:
    driven = drive()
    driven.until_all_joined()
    for name in ("env-0", "engine-compute-0", "reward-0", "relay-bandwidth"):
        before = driven.kill(name)
        assert driven.until_replaced(name, before)["attempt"] == before["attempt"] == 1
        driven.until_all_joined()
        assert [name, -9] in driven.seen()["exited"]
    check_that_a_killed_rank_restarts_all_ranks(driven)
    env = driven.kill("env-0")  # what starts after a trainer's restore still finds the controller
    assert driven.until_replaced("env-0", env)["attempt"] == 2
    driven.until(lambda: ["env-0", 2] in driven.seen()["joined"])

    pids = [proc["pid"] for proc in driven.procs().values()]
    ticks = [start_ticks(pid) for pid in pids]
    driven.run.store_root.mkdir(exist_ok=True)
    driven.end()
    code, output = driven.wait()
    assert code == 0 and output.splitlines()[-1] == "finished"
    assert not driven.left_over(pids, ticks)
    assert not driven.run.store_root.exists()
    assert driven.owner()["state"] == "finished" and not driven.procs()


def check_that_a_killed_rank_restarts_all_ranks(driven: Driven) -> None:
    """As the next attempt; nothing else is started again."""
    commit(driven.run, 7)
    other = driven.procs()["trainer-0"]
    engine = driven.procs()["engine-compute-0"]
    before = driven.kill("trainer-1")
    after = driven.until_replaced("trainer-1", before)
    assert after["attempt"] == before["attempt"] + 1
    assert driven.until_replaced("trainer-0", other)["attempt"] == after["attempt"]
    driven.until(lambda: ["trainer-1", 2] in driven.seen()["joined"])
    assert driven.procs()["engine-compute-0"] == engine
    assert driven.seen()["attempt"] == 1, "the controller lives on"


def test_a_killed_controller_restarts_everything_from_the_checkpoint(drive: Drive) -> None:
    driven = drive()
    driven.until_all_joined()
    commit(driven.run, 3)
    procs = driven.procs()
    driven.kill("controller")
    driven.until_all_joined(attempt=2)
    assert driven.seen()["started_from"] == str(driven.run.checkpoint(3))
    assert not {proc["pid"] for proc in procs.values()} & {proc["pid"] for proc in driven.procs().values()}
    first, second = (driven.run.keys(n) / "env.key" for n in (1, 2))
    assert first.read_bytes() != second.read_bytes()
    driven.end()
    assert driven.wait()[0] == 0


def test_a_controller_that_keeps_dying_ends_the_run_with_its_log(drive: Drive) -> None:
    driven = drive({"controller": {"exit": 1}}, small=True)
    code, output = driven.wait()
    assert code == 3
    assert "controller keeps failing (exit code 1) and has used up restarts.attempts = 2" in output
    assert "told to end" in output and "Traceback" not in output
    assert driven.run.last_attempt() == 3
    assert driven.owner()["state"] == "failed"


def test_a_relay_that_keeps_dying_ends_the_run(drive: Drive) -> None:
    code, output = drive({"relay-compute": {"exit": 1}}, small=True).wait()
    assert code == 3 and "relay-compute keeps failing" in output and "restarts.per_role = 2" in output


def test_one_engine_that_keeps_dying_is_given_up_and_the_run_goes_on(drive: Drive) -> None:
    driven = drive({"engine-compute-0": {"exit": 1}})
    driven.until(lambda: driven.noted("continues without it"))
    driven.end()
    assert driven.wait()[0] == 0


@pytest.mark.parametrize(("name", "code"), [("env-0", 2), ("controller", 3), ("trainer-0", 3)])
def test_a_process_that_knows_why_it_fails_is_quoted(drive: Drive, name: str, code: int) -> None:
    driven = drive({name: {"exit": code}}, small=True)
    got, output = driven.wait()
    assert got == code
    assert f"{name}: told to end" in output and "Traceback" not in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_drains_the_run(drive: Drive, number: signal.Signals) -> None:
    driven = drive(small=True)
    driven.until_all_joined()
    driven.process.send_signal(number)
    code, output = driven.wait()
    assert code == 0 and output.splitlines()[-1] == "drained"
    assert driven.owner()["state"] == "drained"
    assert driven.relays_left_by_themselves()


def test_the_second_signal_ends_it_at_once(drive: Drive) -> None:
    driven = drive(small=True)
    driven.until_all_joined()
    (driven.run.path / "deaf").touch()
    pids = [proc["pid"] for proc in driven.procs().values()]
    ticks = [start_ticks(pid) for pid in pids]
    driven.process.send_signal(signal.SIGINT)
    driven.until(lambda: driven.noted("saving a checkpoint"))
    driven.process.send_signal(signal.SIGINT)
    code, output = driven.wait()
    assert code == 0 and "ending every process now" in output
    assert not driven.left_over(pids, ticks)


def test_at_a_time_limit_the_place_says_how_long_a_checkpoint_may_take(drive: Drive) -> None:
    driven = drive(small=True)
    driven.until_all_joined()
    (driven.run.path / "deaf").touch()
    (driven.run.path / "save_s").write_text("1")
    driven.process.send_signal(signal.SIGUSR1)
    code, output = driven.wait()
    assert code == 0 and "no checkpoint within 1 s" in output


def test_workers_still_leave_by_themselves_when_there_is_no_time_for_a_checkpoint(drive: Drive) -> None:
    driven = drive(small=True)
    driven.until_all_joined()
    for name in ("deaf", "closing"):
        (driven.run.path / name).touch()
    driven.process.send_signal(signal.SIGTERM)
    code, output = driven.wait()
    assert code == 0 and "about to be killed" in output
    assert driven.relays_left_by_themselves()


def test_processes_end_with_a_killed_supervisor(drive: Drive) -> None:
    driven = drive(small=True)
    driven.until_all_joined()
    pids = [proc["pid"] for proc in driven.procs().values()]
    ticks = [start_ticks(pid) for pid in pids]
    driven.process.kill()
    driven.process.wait()
    deadline = time.monotonic() + PATIENCE_S
    while driven.left_over(pids, ticks) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not driven.left_over(pids, ticks)


def test_a_role_that_never_joins_ends_the_run_with_stacks(drive: Drive) -> None:
    driven = drive({"reward-0": {"hang": True}}, small=True, timeouts=TimeoutConfig(start_s=15.0))
    code, output = driven.wait()
    assert code == 3 and re.search(r"missing: .*1 reward", output)
    assert "in behave" in driven.run.log(1, "reward-0").read_text()


def test_elastic_workers_come_when_the_controller_says_that_there_is_work(drive: Drive) -> None:
    """Over the link: there is no status.json."""
    reward = RewardConfig(workers=1, elastic=ElasticConfig(max_workers=2, queue_per_worker=10, settle_s=0.1))
    driven = drive(small=True, reward=reward)
    driven.until_all_joined()
    assert not [name for name in driven.procs() if "elastic" in name]
    (driven.run.path / "to_score").write_text("25")
    driven.until(lambda: driven.seen()["alive"].get("reward") == 3)
    assert driven.noted("25 transcripts to score: requesting 2 elastic reward workers")
    assert not driven.run.status.exists()
    driven.end()
    assert driven.wait()[0] == 0


def test_a_run_in_which_nothing_moves_is_ended(drive: Drive) -> None:
    driven = drive(small=True, timeouts=TimeoutConfig(idle_s=6.0))
    driven.until_all_joined()
    (driven.run.path / "idle").touch()
    code, output = driven.wait()
    assert code == 3 and "no progress for timeouts.idle_s = 6 s" in output
    assert "in control" in driven.run.log(1, "controller").read_text()
