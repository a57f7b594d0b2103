"""Series: one short question, one long answer (decode-heavy). Owns its text.

    count on from 7 by 1    ->    8 9 0 1 2 ... (40 numbers, modulo 10)
"""

from __future__ import annotations

import random
from typing import Any

from rollart_hpc.envs.contract import Turn


class Series:
    def __init__(self, length: int = 40, modulus: int = 10, max_stride: int = 1) -> None:
        self.length, self.modulus, self.max_stride = length, modulus, max_stride

    def reset(self, seed: int) -> str:
        rng = random.Random(seed)
        self.start, self.stride = rng.randrange(self.modulus), rng.randrange(1, self.max_stride + 1)
        return f"count on from {self.start} by {self.stride}"

    def step(self, response: str) -> Turn:
        return Turn("", True)

    def outcome(self) -> dict[str, Any]:
        numbers = [(self.start + self.stride * (i + 1)) % self.modulus for i in range(self.length)]
        return {"start": self.start, "stride": self.stride, "modulus": self.modulus, "expected": numbers}

    def close(self) -> None:
        """Nothing is held."""

    def legal_answer(self, rng: random.Random) -> str:
        """Right in form, at random in content: what the base model learns the format from."""
        return " ".join(str(rng.randrange(self.modulus)) for _ in range(self.length))
