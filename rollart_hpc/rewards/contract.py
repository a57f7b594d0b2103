"""The contract of a reward function: a pure function `(transcript, **reward_params) -> Score`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Transcript:
    """A trajectory as text: observations, responses, and the outcome that the environment reports."""

    task: str
    turns: list[tuple[str, str]]  # (observation, response)
    outcome: dict[str, Any]


@dataclass(frozen=True)
class Score:
    reward: float
    success: bool  # what validation counts
    turns: Sequence[float] = ()  # what each turn earned, for algorithms that use it; the last one earns the rest
