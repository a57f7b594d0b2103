from __future__ import annotations

import math
from typing import Any

import pytest

from rollart_hpc.observe.paired import paired


def line(rewards: dict[int, float]) -> dict[str, Any]:
    success = [reward > 0.5 for reward in rewards.values()]
    return {"each": {"seed": list(rewards), "reward": list(rewards.values()), "success": success}}


def test_scores_are_paired_by_seed() -> None:
    before, after = line({1: 0.0, 3: 0.5, 5: 1.0}), line({5: 1.0, 3: 0.8, 1: 0.6})
    change = paired(before, after)
    assert change is not None and change.plays == 3
    assert (change.before, change.after) == pytest.approx((0.5, 0.8))
    assert change.difference == pytest.approx(0.3)
    assert change.standard_error == pytest.approx(0.3 / math.sqrt(3))  # of the differences 0.6, 0.3, 0
    assert not change.is_significant
    by_success = paired(before, after, "success")
    assert by_success is not None and by_success.difference == pytest.approx(2 / 3)


def test_a_steady_gain_is_significant_though_prompts_differ_widely() -> None:
    before = {seed: seed / 64 for seed in range(64)}
    change = paired(line(before), line({seed: value + 0.02 + 0.01 * (seed % 2) for seed, value in before.items()}))
    assert change is not None and change.is_significant


def test_what_can_not_be_paired() -> None:
    assert paired({}, line({1: 1.0})) is None
    assert paired(line({1: 0.0}), line({3: 1.0})) is None
    one = paired(line({1: 0.0}), line({1: 1.0}))
    assert one is not None and not one.is_significant
