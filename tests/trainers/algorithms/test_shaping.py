from __future__ import annotations

import numpy as np
import pytest

from rollart_hpc.config.algorithms import Part, entries
from rollart_hpc.trainers.algorithms import shaping
from tests.trainers.algorithms.making import play, plays

ALL = entries(Part.SHAPING)


@pytest.mark.parametrize(("length", "penalty"), [(700, 0), (800, 0), (900, -0.5), (950, -0.75), (1000, -1), (1200, -1)])
def test_the_overlong_penalty_grows_to_its_bound(length: int, penalty: float) -> None:
    one = play(0.0, [length - 100], num_observed=100, token_limit=1000)
    assert shaping.overlong([[one]], buffer=200) == [[pytest.approx(penalty)]]


def test_overlong_may_count_sampled_tokens_and_have_its_own_limit() -> None:
    one = play(1.0, [95], num_observed=500)
    assert shaping.overlong([[one]], buffer=10) == [[1.0]]  # no limit known
    assert shaping.overlong([[one]], limit=100, buffer=10, factor=2.0, counts="sampled") == [[pytest.approx(0.0)]]
    assert shaping.overlong([[one]], limit=100, buffer=10, factor=2.0) == [[-1.0]]


def test_long_plays_pay_a_share_of_the_mean() -> None:
    assert shaping.length([[play(1.0, [5]), play(1.0, [10])]], weight=0.2) == [[pytest.approx(0.9), pytest.approx(0.8)]]


def test_clip() -> None:
    assert shaping.clip(plays([3.0, -0.5]), low=0.0, high=2.0) == [[2.0, 0.0]]


def test_normalising_by_group_or_batch() -> None:
    groups = plays([1.0, 0.0], [5.0, 5.0])
    first, second = shaping.normalise_group(groups)
    assert first == pytest.approx([0.7071, -0.7071], abs=1e-4)
    assert second == [0.0, 0.0]
    rewards = np.array([1.0, 0.0, 5.0, 5.0])
    found = np.ravel(shaping.normalise_batch(groups))
    assert found == pytest.approx((rewards - rewards.mean()) / rewards.std(ddof=1), abs=1e-5)
    assert np.ravel(shaping.normalise_batch(groups, mean=False, std=False)).tolist() == rewards.tolist()


def test_cut_plays_are_left_out() -> None:
    assert shaping.leave_out_cut([[play(1.0), play(1.0, is_cut=True)]]) == [[False, True]]


def test_whitened_advantages_have_mean_0_and_variance_1() -> None:
    found = np.concatenate([np.ravel(v) for v in shaping.whiten([[np.array([1.0, 2.0])], [np.array([4.0])]])[0]])
    both = shaping.whiten([[np.array([1.0, 2.0])], [np.array([4.0])]])
    values = np.concatenate([values for group in both for values in group])
    assert values.mean() == pytest.approx(0.0)
    assert values.var(ddof=1) == pytest.approx(1.0)
    assert len(found) == 2
    assert np.concatenate(shaping.whiten([[np.ones(3)]])[0]).tolist() == [0.0] * 3


def test_every_shaping_has_a_test() -> None:
    assert set(ALL) == {
        "overlong", "length", "clip", "normalise_group", "normalise_batch", "leave_out_cut", "whiten"
    }  # fmt: skip
