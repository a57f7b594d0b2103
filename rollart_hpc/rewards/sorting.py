"""Reward of Sorting: an answer with the letters in order succeeds; other answers get partial credit.

Success depends only on the letters. The words around them count a little, so that the policy keeps the format.
"""

from __future__ import annotations

from itertools import pairwise

from rollart_hpc.rewards.contract import Score, Transcript


def in_order(
    transcript: Transcript, partial_weight: float = 0.9, wrong_length: float = 0.1, form_weight: float = 0.2
) -> Score:
    """Partial credit: half for letters in their place, half for letters greater than the one before them."""
    expected = sorted(transcript.outcome["letters"])
    response = transcript.turns[-1][1] if transcript.turns else ""
    words = response.split()
    named = [word for word in words if len(word) == 1 and word.isalpha()]
    malformed = form_weight * (1 - _numbered(words, len(expected)))
    if named == expected:
        return Score(1.0 - malformed, True)
    placed = sum(a == b for a, b in zip(named, expected))
    # Only the sorted answer rises len(expected) times through these letters, so no other answer has the full credit.
    rising = sum(a < b and b in expected for a, b in pairwise(["", *named[: len(expected)]]))
    credit = partial_weight * (placed + rising) / (2 * len(expected))
    return Score(credit - malformed - (wrong_length if len(named) != len(expected) else 0.0), False)


def _numbered(words: list[str], places: int) -> float:
    """The share of place numbers that are correct: first 1, then 2 and so on."""
    numbers = [word for word in words if word.isdigit()]
    return sum(number == str(place) for place, number in enumerate(numbers[:places], 1)) / places
