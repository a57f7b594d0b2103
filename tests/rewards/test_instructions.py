from __future__ import annotations

import pytest

from rollart_hpc.rewards.contract import Score, Transcript
from rollart_hpc.rewards.instructions import followed

ITEMS = ["fish", "salt", "moon"]


def score(response: str, **params: float) -> Score:
    return followed(Transcript("instructions", [("...", response)], {"kind": "reverse", "items": ITEMS}), **params)


@pytest.mark.parametrize(
    "response",
    ["fish, salt, moon", "fish,salt,moon", " fish , salt , moon\n", "<think>a, b</think>\n\nfish, salt, moon"],
)
def test_the_list_and_nothing_else_succeeds(response: str) -> None:
    assert score(response) == Score(1.0, True)


@pytest.mark.parametrize(
    "response",
    ["", "fish salt moon", "fish, salt, moon.", "Fish, salt, moon", "fish, salt", "fish, salt, moon, moon",
     "moon, salt, fish", "Sure: fish, salt, moon", "fish, salt, moon, and so on"],
)  # fmt: skip
def test_anything_else_does_not(response: str) -> None:
    found = score(response)
    assert not found.success and 0 <= found.reward < 1


def test_credit_rises_with_what_is_right() -> None:
    answers = ["Why?", "The words are moon and salt", "moon, salt, fish", "fish salt moon", "fish, salt, moon."]
    rewards = [score(answer).reward for answer in answers]
    assert rewards[0] < rewards[1] < rewards[2] < rewards[4] < 1 and rewards[1] < rewards[3]
    assert score("fish salt moon", item_weight=0.1).reward > score("fish salt moon").reward > 0


def test_an_empty_transcript_scores_nothing() -> None:
    assert followed(Transcript("instructions", [], {"kind": "reverse", "items": ITEMS})) == Score(0.0, False)
