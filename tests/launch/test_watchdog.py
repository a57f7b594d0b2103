from __future__ import annotations

from rollart_hpc.config.schema import RunConfig, TimeoutConfig, TrainerConfig
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.watchdog import Watchdog
from rollart_hpc.vocabulary import RunState
from rollart_hpc.wire.messages import Progress

ALL = {"env": 1, "engine": 2, "relay": 2, "trainer": 1, "reward": 1}  # of two trainer ranks the first one joins

PLAN = make_plan(RunConfig(trainer=TrainerConfig(ranks=2)))


def told(progress: int, **alive: int) -> Progress:
    return Progress(RunState.RUNNING, progress, 0, alive)


def make() -> Watchdog:
    watchdog = Watchdog(TimeoutConfig(start_s=10, idle_s=20))
    watchdog.reset(100.0)
    for proc in PLAN.workers:
        watchdog.expect(proc)
    return watchdog


def test_the_start_has_a_limit_whatever_moves() -> None:
    watchdog = make()
    watchdog.see(told(1, **{**ALL, "engine": 1}), 109)
    assert watchdog.verdict(110) == ""
    assert "missing: 1 engine" in watchdog.verdict(110.1)


def test_then_progress_counts() -> None:
    watchdog = make()
    watchdog.see(told(1, **ALL), 105)
    for now in (110, 120, 125):
        watchdog.see(told(1, **ALL), now)
        assert watchdog.verdict(now) == ""
    assert "no progress" in watchdog.verdict(125.1)
    watchdog.see(told(2, **ALL), 125.2)
    assert watchdog.verdict(145) == ""


def test_a_process_that_is_given_up_is_not_waited_for() -> None:
    watchdog = make()
    watchdog.excuse(PLAN["engine-compute-0"])
    watchdog.see(told(1, **{**ALL, "engine": 1}), 105)
    assert watchdog.verdict(111) == ""


def test_a_new_attempt_starts_anew() -> None:
    watchdog = make()
    watchdog.see(told(7, **ALL), 105)
    watchdog.reset(200)
    assert watchdog.verdict(209) == ""
    assert "not all roles joined" in watchdog.verdict(211)


def test_a_restored_trainer_gets_time() -> None:
    watchdog = make()
    watchdog.see(told(1, **ALL), 105)
    watchdog.touch(120)
    assert watchdog.verdict(130) == ""
