"""Reward of Instructions: the list that was asked for and nothing else succeeds; others get credit for what is right.

Credit is dense, so that a group of answers of a model that has never succeeded still differs: every letter in its place
counts, and every item.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

from rollart_hpc.rewards.contract import Score, Transcript

THOUGHT = "</think>"  # what a model thinks before its answer is its own business


def followed(transcript: Transcript, item_weight: float = 0.5) -> Score:
    """Credit: how far the text agrees letter by letter and, with `item_weight`, how many items do."""
    expected: list[str] = list(transcript.outcome["items"])
    response = transcript.turns[-1][1].split(THOUGHT)[-1].strip() if transcript.turns else ""
    items = [item.strip() for item in response.split(",")]
    if items == expected:
        return Score(1.0, True)
    letters = _agreement(response, ", ".join(expected))
    return Score((1 - item_weight) * letters + item_weight * _agreement(items, expected), False)


def _agreement(said: Sequence[str], expected: Sequence[str]) -> float:
    """1 if they are the same, 0 if they have nothing in common; what is said too much costs as what is missing."""
    return SequenceMatcher(None, said, expected, autojunk=False).ratio()
