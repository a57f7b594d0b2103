"""Reward of Sorting: an answer that names the letters in order succeeds; others get credit for what is right in them.

Only the letters count, not the words around them.
"""

from __future__ import annotations

from itertools import pairwise

from rollart_hpc.rewards.contract import Score, Transcript


def in_order(transcript: Transcript, partial_weight: float = 0.9, wrong_length: float = 0.1) -> Score:
    """Partial credit: half for letters in their place, half for letters that come after the one before them."""
    expected = sorted(transcript.outcome["letters"])
    response = transcript.turns[-1][1] if transcript.turns else ""
    named = [word for word in response.split() if len(word) == 1 and word.isalpha()]
    if named == expected:
        return Score(1.0, True)
    placed = sum(a == b for a, b in zip(named, expected))
    # Only the sorted answer rises len(expected) times through these letters: the credit has no other maximum.
    rising = sum(a < b and b in expected for a, b in pairwise(["", *named[: len(expected)]]))
    credit = partial_weight * (placed + rising) / (2 * len(expected))
    return Score(credit - (wrong_length if len(named) != len(expected) else 0.0), False)
