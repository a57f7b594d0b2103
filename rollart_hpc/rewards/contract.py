"""What a reward function is: a pure function `(transcript, **reward_params) -> Score`. Owns that contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Transcript:
    """A trajectory as text: what was observed and answered, and what the environment says came of it."""

    task: str
    turns: list[tuple[str, str]]  # (observation, response)
    outcome: dict[str, Any]


@dataclass(frozen=True)
class Score:
    reward: float
    success: bool  # exact: what validation counts
