"""The contract of an environment: what a task's author implements and env workers call.

An environment plays one trajectory at a time and is reused after `reset`. It reads and writes text, never tokens.
It may raise, hang or crash: only its trajectory ends.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Turn:
    """The environment's reply to an answer. The policy does not see the observation of the last turn."""

    observation: str
    done: bool


class Environment(Protocol):
    """Created with the `params` of the task file as keyword arguments."""

    def reset(self, seed: int) -> str:
        """Start a new trajectory; returns the first user message. Must be deterministic for a seed."""
        ...

    def step(self, response: str) -> Turn:
        """Process the policy's answer, as text."""
        ...

    def outcome(self) -> dict[str, Any]:
        """JSON-serializable facts about the trajectory so far, for the reward function."""
        ...

    def close(self) -> None: ...


class HasFormat(Protocol):
    """Optional, in addition to `Environment`: needed if the run makes its own base model (`model.kind: tiny`)."""

    def legal_answer(self, rng: random.Random) -> str:
        """A random but legal answer to the last observation, drawn from `rng`. It must not hint at the solution.

        The tiny base model learns the format from trajectories with such answers, and the tokenizer its words.
        """
        ...
