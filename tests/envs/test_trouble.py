from __future__ import annotations

from typing import Any

import pytest

from rollart_hpc.config.schema import Latency, Trouble
from rollart_hpc.envs import trouble as module
from rollart_hpc.envs.trouble import InjectedError, Troubled, is_quiet
from tests.envs.odd import Counting


@pytest.fixture
def sleeps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr(module.time, "sleep", taken.append)
    return taken


def play(trouble: Trouble, seed: int, turns: int = 20) -> list[Any]:
    inner = Counting(turns=turns)
    inner.reset(0)
    environment = Troubled(inner, trouble)  # type: ignore[arg-type]
    environment.arm(seed)
    seen: list[Any] = []
    for act in [lambda: environment.reset(1), *[lambda: environment.step("x")] * turns]:
        try:
            act()
            seen.append("fine")
        except InjectedError as error:
            seen.append(str(error))
    return seen


def test_latency_is_normal_and_cut_at_zero(sleeps: list[float]) -> None:
    play(Trouble(turn_latency=Latency(1.0, 0.1)), seed=3, turns=200)
    assert len(sleeps) == 200 and 0.95 < sum(sleeps) / 200 < 1.05
    sleeps.clear()
    play(Trouble(turn_latency=Latency(0.0, 1.0)), seed=3, turns=200)
    assert 50 < len(sleeps) < 150 and min(sleeps) > 0


def test_the_same_seed_brings_the_same_trouble(sleeps: list[float]) -> None:
    trouble = Trouble(reset_failure_rate=0.3, turn_error_rate=0.3, reset_latency=Latency(1, 1))
    first, again, other = play(trouble, 1), play(trouble, 1), play(trouble, 2)
    assert first == again != other and {"fine", "injected turn error"} <= set(first)
    assert any(play(trouble, seed)[0] == "injected reset failure" for seed in range(20))


def test_one_rate_does_not_move_the_others_draws(sleeps: list[float]) -> None:
    play(Trouble(turn_latency=Latency(1, 0.5)), 7)
    alone = list(sleeps)
    sleeps.clear()
    play(Trouble(turn_latency=Latency(1, 0.5), hang_rate=1e-12, crash_rate=1e-12), 7)
    assert sleeps == alone


def test_no_trouble_is_quiet() -> None:
    assert is_quiet(Trouble()) and not is_quiet(Trouble(hang_rate=0.1))
    environment = Troubled(Counting(), Trouble())  # type: ignore[arg-type]
    environment.reset(1)
    assert environment.step("x").observation.startswith("turn 1") and environment.outcome()["turns"] == 1
    environment.close()
