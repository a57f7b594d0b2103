"""Instructions: do exactly what a short sentence asks for. For models that understand English. Owns its text.

    Copy these words: coat, lamp                                  ->    coat, lamp
    Write the word river 3 times, separated by commas.            ->    river, river, river
    Write these words in reverse order: moon, salt, fish          ->    fish, salt, moon
    Write these words in capital letters: lamp, coat              ->    LAMP, COAT
    Count down from 9 to 6, separated by commas.                  ->    9, 8, 7, 6

Every answer is a comma-separated list. The seed determines the instruction.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from rollart_hpc.envs.contract import Turn

KINDS = ("copy", "repeat", "reverse", "capitals", "count")
WORDS = [
    "apple", "bread", "chair", "river", "stone", "moon", "salt", "fish", "lamp", "coat",
    "glass", "horse", "paper", "green", "tiger", "cloud", "music", "table", "water", "house",
    "light", "bird", "snow", "road", "tree", "wind", "gold", "door", "king", "ship",
    "star", "sand", "milk", "rain", "hand", "city", "fire", "leaf", "book", "boat",
]  # fmt: skip


class Instructions:
    """`kinds`: the kinds of instructions; `longest`: maximum items in an answer."""

    def __init__(self, kinds: Sequence[str] = KINDS, longest: int = 5) -> None:
        unknown = sorted(set(kinds) - set(KINDS))
        if unknown or not kinds:
            raise ValueError(f"kinds={list(kinds)}: must be some of {', '.join(KINDS)}")
        if not 2 <= longest <= 8:
            raise ValueError(f"longest={longest}: must be 2 to 8")
        self.kinds, self.longest = tuple(kinds), longest

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        self.kind = rng.choice(self.kinds)
        number = rng.randint(2, self.longest)
        words = rng.sample(WORDS, number)
        match self.kind:
            case "copy":
                text, self.items = f"Copy these words: {', '.join(words)}", words
            case "repeat":
                text, self.items = f"Write the word {words[0]} {number} times, separated by commas.", words[:1] * number
            case "reverse":
                text, self.items = f"Write these words in reverse order: {', '.join(words)}", words[::-1]
            case "capitals":
                text = f"Write these words in capital letters: {', '.join(words)}"
                self.items = [word.upper() for word in words]
            case _:
                first = rng.randint(number, 20)
                self.items = [str(first - i) for i in range(number)]
                text = f"Count down from {self.items[0]} to {self.items[-1]}, separated by commas."
        return text

    def step(self, response: str) -> Turn:
        """The reward function judges the answer, from the transcript."""
        return Turn("", True)

    def outcome(self) -> dict[str, Any]:
        return {"kind": self.kind, "items": self.items}

    def close(self) -> None:
        """Nothing to release."""

    def legal_answer(self, rng: random.Random) -> str:
        """Correct in form, random in content."""
        return ", ".join(rng.sample(WORDS, rng.randint(2, self.longest)))
