"""How many elastic engines a pool gets."""

from __future__ import annotations

from rollart_hpc.config.schema import PoolElasticConfig
from rollart_hpc.launch.elastic.engines import PoolScaler


def scaler(**settings: float) -> PoolScaler:
    chosen = {"min": 0, "max": 4, "settle_s": 5.0, "idle_s": 20.0} | settings
    return PoolScaler(PoolElasticConfig(**chosen), num_fixed=1, turns_per_engine=10)  # type: ignore[arg-type]


def test_as_many_as_the_turns_need_within_the_limits() -> None:
    assert [scaler().enough(turns) for turns in (0, 10, 11, 30, 1000)] == [0, 0, 1, 2, 4]
    assert scaler(min=2).enough(0) == scaler(min=2).num == 2


def test_more_only_after_the_turns_have_been_too_many_for_some_time() -> None:
    one = scaler()
    assert [one.wanted(40, now) for now in (0.1, 4.0)] == [0, 0]
    assert one.wanted(5, 5.0) == 0, "a short burst"
    assert [one.wanted(40, now) for now in (6.0, 10.0, 11.0)] == [0, 0, 3]


def test_one_at_a_time_is_ended_after_idle_time() -> None:
    one = scaler(settle_s=0.0)
    assert one.wanted(40, 1.0) == 3
    assert [one.wanted(0, now) for now in (2.0, 21.0, 22.0, 23.0, 42.0, 43.0)] == [3, 3, 2, 2, 2, 1]
    assert one.wanted(5, 44.0) == 1
    assert one.wanted(40, 45.0) == 3
