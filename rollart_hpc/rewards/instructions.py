"""Reward of Instructions: the list that was asked for and nothing else succeeds; others get credit for what is right.

Credit is dense, so that a group of answers of a model that has never succeeded still differs: words count apart from
the form they come in.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher

from rollart_hpc.rewards.contract import Score, Transcript

_WORD = re.compile(r"\w+")


def followed(transcript: Transcript, form_weight: float = 0.4) -> Score:
    """Credit: how far the words agree and, with `form_weight`, how far the items between commas do."""
    expected = list(transcript.outcome["items"])
    response = transcript.turns[-1][1] if transcript.turns else ""
    items = [item.strip() for item in response.split(",")]
    words = _agreement(_WORD.findall(response), expected)
    form = _agreement(items, expected)
    return Score((1 - form_weight) * words + form_weight * form, items == expected)


def _agreement(said: Sequence[str], expected: Sequence[str]) -> float:
    """1 if they are the same, 0 if they have nothing in common; what is said too much costs as what is missing."""
    return SequenceMatcher(None, said, expected, autojunk=False).ratio()
