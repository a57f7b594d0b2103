"""What an environment is. Owns the contract between a task's file and the processes that host it.

An environment plays one trajectory at a time and is used again after `reset`. It sees and answers text;
tokens are not its business. It may raise, hang or crash: that ends its trajectory, nothing else.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Turn:
    """What the environment says to an answer. The observation of a last turn is not shown to the policy."""

    observation: str
    done: bool


class Environment(Protocol):
    """Made with the keyword arguments in the task file's `params`."""

    def reset(self, seed: int) -> str:
        """Begin a new play; returns the first user message. The same seed gives the same play."""
        ...

    def step(self, response: str) -> Turn:
        """Take the policy's answer, decoded."""
        ...

    def outcome(self) -> dict[str, Any]:
        """JSON-able facts of the play so far, for the reward function."""
        ...

    def close(self) -> None: ...


class HasFormat(Protocol):
    """Optional, besides `Environment`: needed when the run makes its own base model (`model.kind: tiny`)."""

    def legal_answer(self, rng: random.Random) -> str:
        """A random but legal answer to the observation just given, drawn from `rng`, never a hint at the solution.

        From plays with such answers the tiny base model learns the form, and the tokenizer its words.
        """
        ...
