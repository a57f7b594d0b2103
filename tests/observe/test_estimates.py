from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.observe.estimates import estimate, pass_at, wilson


def line(*plays: tuple[int, float, bool], failed: int = 0) -> dict[str, Any]:
    return {"failed": failed, "each": {n: [p[i] for p in plays] for i, n in enumerate(("seed", "reward", "success"))}}


@given(st.lists(st.booleans(), min_size=1, max_size=8), st.data())
def test_pass_at_k_is_the_share_of_draws_with_a_success(plays: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(plays)))
    draws = [any(draw) for draw in combinations(plays, k)]
    assert pass_at(k, len(plays), sum(plays)) == pytest.approx(sum(draws) / len(draws))


def test_pass_at_more_than_was_played() -> None:
    with pytest.raises(ValueError, match="needs 3 plays, not 2"):
        pass_at(3, 2, 1)


@given(st.floats(0, 1), st.integers(1, 10_000))
def test_the_interval_holds_the_share(share: float, count: int) -> None:
    low, high = wilson(share, count)
    assert 0 <= low <= share + 1e-12 and share - 1e-12 <= high <= 1 and high - low > 0


def test_the_interval_of_wilson() -> None:
    """The example of 8 of 10 in Agresti and Coull, 1998: 0.490 to 0.943."""
    assert wilson(0.8, 10) == pytest.approx((0.490, 0.943), abs=5e-4)


def test_seeds_are_the_units() -> None:
    plays = [(1, 1.0, True), (1, 0.0, False), (3, 0.5, False), (3, 0.5, False), (5, 1.0, True), (5, 1.0, True)]
    found = estimate(line(*plays, failed=2))
    assert found is not None and (found.seeds, found.plays, found.failed) == (3, 6, 2)
    assert found.success == pytest.approx(0.5) and (found.low, found.high) == wilson(0.5, 3)
    assert found.reward == pytest.approx(2 / 3) and found.reward_error == pytest.approx(math.sqrt(1 / 12 / 3))
    assert found.pass_at == pytest.approx({1: 0.5, 2: 2 / 3})


def test_a_seed_with_a_failed_play_limits_k() -> None:
    found = estimate(line((1, 1.0, True), (1, 0.0, False), (1, 0.0, False), (3, 1.0, True), (3, 1.0, True)))
    assert found is not None and list(found.pass_at) == [1, 2]


def test_one_seed_has_no_error() -> None:
    found = estimate(line((1, 1.0, True)))
    assert found is not None and found.reward_error is None


def test_nothing_was_scored() -> None:
    assert estimate({"failed": 4}) is None and estimate(line(failed=4)) is None
