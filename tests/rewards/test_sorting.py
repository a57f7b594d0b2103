from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.rewards.contract import Score, Transcript
from rollart_hpc.rewards.sorting import in_order

SHOWN = ["f", "c", "a", "h"]


def score(response: str, **params: float) -> Score:
    """Of an answer whose places are not numbered: the form is worth nothing unless a test asks for it."""
    params.setdefault("form_weight", 0.0)
    return in_order(Transcript("sorting", [("sort f c a h", response)], {"letters": SHOWN}), **params)


def test_the_sorted_letters_succeed_whatever_words_stand_around_them() -> None:
    assert score("next in line place 1 a , c then f and 9 h") == Score(1.0, True)


def test_better_answers_get_more() -> None:
    answers = ["", "h f c a", "a h f c", "a c h f", "a c f h"]
    rewards = [score(answer).reward for answer in answers]
    assert rewards == sorted(set(rewards))


def test_a_wrong_number_of_letters_costs() -> None:
    assert score("a c f").reward == pytest.approx(0.9 * 3 / 4 - 0.1)
    assert score("a c f h h").reward == pytest.approx(0.9 - 0.1)
    assert score("a c f h h", wrong_length=0.5).reward == pytest.approx(0.9 - 0.5)
    assert not score("a c f h h").success


def test_letters_that_were_not_shown_do_not_count() -> None:
    assert score("a b d e").reward < score("a c h f").reward


def test_an_answer_that_never_came_is_no_success() -> None:
    assert in_order(Transcript("sorting", [], {"letters": SHOWN})) == Score(pytest.approx(-0.3), False)


def test_places_out_of_number_cost_but_do_not_undo_success() -> None:
    assert score("place 1 a , place 2 c , place 3 f , place 4 h", form_weight=0.2) == Score(1.0, True)
    assert score("place 1 a , place 2 c , place 4 f , place 4 h", form_weight=0.2) == Score(pytest.approx(0.95), True)


@given(st.lists(st.sampled_from("abcfh"), max_size=8))
def test_only_the_sorted_answer_gets_everything(letters: list[str]) -> None:
    result = score(" ".join(letters))
    assert result.success == (letters == sorted(SHOWN))
    assert result.reward == 1.0 if result.success else -0.1 <= result.reward <= 0.9
