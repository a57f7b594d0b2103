"""Reward of Instructions: success is exactly the requested list; other answers get partial credit.

Credit is dense: every letter in its place counts, and every item. So rewards in a group differ even if the model has
never succeeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from rollart_hpc.rewards.contract import Score, Transcript

THOUGHT = "</think>"  # the model's thinking before its answer is not scored


def followed(transcript: Transcript, item_weight: float = 0.5) -> Score:
    """Credit is the agreement letter by letter and, weighted by `item_weight`, item by item."""
    expected: list[str] = list(transcript.outcome["items"])
    response = transcript.turns[-1][1].split(THOUGHT)[-1].strip() if transcript.turns else ""
    items = [item.strip() for item in response.split(",")]
    if items == expected:
        return Score(1.0, True)
    letters = _agreement(response, ", ".join(expected))
    return Score((1 - item_weight) * letters + item_weight * _agreement(items, expected), False)


def _agreement(said: Sequence[str], expected: Sequence[str]) -> float:
    """1 if they are equal, 0 if they have nothing in common. Extra items cost as much as missing ones."""
    return SequenceMatcher(None, said, expected, autojunk=False).ratio()
