"""Reward of Series: exact answers succeed; otherwise partial credit for every step that follows the rule."""

from __future__ import annotations

from itertools import pairwise

from rollart_hpc.rewards.contract import Score, Transcript


def follows_rule(transcript: Transcript, partial_weight: float = 0.9) -> Score:
    outcome = transcript.outcome
    words = transcript.turns[-1][1].split() if transcript.turns else []
    expected = [str(number) for number in outcome["expected"]]
    if words == expected:
        return Score(1.0, True)
    numbers = [outcome["start"], *(int(word) if word.isdigit() else -1 for word in words[: len(expected)])]
    stride, modulus = outcome["stride"], outcome["modulus"]
    right = sum(b == (a + stride) % modulus for a, b in pairwise(numbers) if a >= 0)
    return Score(partial_weight * right / len(expected), False)
