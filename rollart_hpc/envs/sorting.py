"""Sorting: a short question and a long answer, so most tokens are sampled (decode-heavy). Owns its text.

    sort f c a    ->    next in line place 1 a , next in line place 2 c , next in line place 3 f

The seed determines the letters and the order in which they are shown.
"""

from __future__ import annotations

import random
import string
from typing import Any

from rollart_hpc.envs.contract import Turn

LEAD = "next in line place"  # the words before each letter, which make the answer long


class Sorting:
    """`length` different letters out of the first `letters` of the alphabet."""

    def __init__(self, length: int = 6, letters: int = 10) -> None:
        if not 1 <= length <= letters <= len(string.ascii_lowercase):
            raise ValueError(f"length={length}, letters={letters}: must be 1 <= length <= letters <= 26")
        self.length = length
        self.alphabet = string.ascii_lowercase[:letters]

    def reset(self, seed: int) -> str:
        self.shown = random.Random(seed).sample(self.alphabet, self.length)
        return "sort " + " ".join(self.shown)

    def step(self, response: str) -> Turn:
        """The reward function judges the answer, from the transcript."""
        return Turn("", True)

    def outcome(self) -> dict[str, Any]:
        return {"letters": self.shown}

    def close(self) -> None:
        """Nothing to release."""

    def legal_answer(self, rng: random.Random) -> str:
        """Correct in form, random in content: the letters shown, in random order."""
        return self._answer(rng.sample(self.shown, self.length))

    def _answer(self, letters: list[str]) -> str:
        return " , ".join(f"{LEAD} {place} {letter}" for place, letter in enumerate(letters, 1))
