from __future__ import annotations

import pytest

from rollart_hpc.rewards.contract import Score, Transcript
from rollart_hpc.rewards.frozenlake import reached_goal


def score(reached: bool, progress: float, invalid: int = 0, **params: float) -> Score:
    outcome = {"reached": reached, "fell": not reached, "invalid": invalid, "progress": progress}
    return reached_goal(Transcript("frozenlake", [("row 0 column 0", "down")], outcome), **params)


def test_the_goal_is_success() -> None:
    assert score(True, 1.0) == Score(1.0, True)


@pytest.mark.parametrize("progress", [0.0, 0.5, 5 / 6])
def test_coming_nearer_is_worth_something_but_never_a_success(progress: float) -> None:
    result = score(False, progress)
    assert result == Score(0.5 * progress, False)
    assert result.reward < score(True, 1.0).reward


def test_the_weight_of_progress_is_a_parameter() -> None:
    assert score(False, 0.5, progress_weight=0.2).reward == pytest.approx(0.1)


def test_turns_without_a_move_cost_but_do_not_undo_success() -> None:
    assert score(False, 0.5, invalid=2).reward == pytest.approx(0.25 - 0.1)
    assert score(True, 1.0, invalid=1) == Score(0.95, True)
