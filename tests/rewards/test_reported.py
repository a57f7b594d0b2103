from __future__ import annotations

import pytest

from rollart_hpc.rewards.contract import Score, Transcript
from rollart_hpc.rewards.reported import reported


def test_the_environments_own_reward_is_the_score() -> None:
    assert reported(Transcript("any", [], {"reward": 1, "success": True, "moves": 3})) == Score(1.0, True)


def test_an_outcome_without_a_reward_is_an_error_and_not_zero() -> None:
    with pytest.raises(KeyError, match="reward"):
        reported(Transcript("any", [], {"success": False}))
