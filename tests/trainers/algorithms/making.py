"""Plays and tokens to compute with, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from rollart_hpc.trainers.algorithms.plays import Play
from rollart_hpc.trainers.algorithms.tokens import Tokens
from rollart_hpc.types import OBSERVED, Sample, TokenRecord, TrainGroup

TWO_GROUPS = [[1.0, 0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 1.0, 0.0]]


def play(reward: float, turns: Sequence[int] = (1,), **more: object) -> Play:
    """`turns`: sampled tokens of each."""
    return Play(reward, np.repeat(np.arange(len(turns)), turns), **more)  # type: ignore[arg-type]


def plays(*groups: Sequence[float]) -> list[list[Play]]:
    return [[play(reward) for reward in group] for group in groups]


def vector(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def tokens(
    new: Sequence[float] | torch.Tensor,
    behaviour: Sequence[float],
    advantages: Sequence[float],
    *,
    samples: Sequence[int] | None = None,
    turns: Sequence[int] | None = None,
    rewards: Sequence[float] | None = None,
    is_decoupled: bool = False,
) -> Tokens:
    """All of one sample and one turn unless told otherwise."""
    of_sample = torch.tensor(samples if samples is not None else [0] * len(behaviour))
    of_turn = torch.tensor(turns) if turns is not None else of_sample
    return Tokens(
        new=new if isinstance(new, torch.Tensor) else vector(new),
        behaviour=vector(behaviour),
        advantages=vector(advantages),
        rewards=vector(advantages if rewards is None else rewards),
        samples=of_sample,
        turns=of_turn,
        num_samples=int(of_sample.max()) + 1,
        num_turns=int(of_turn.max()) + 1,
        is_decoupled=is_decoupled,
    )


def group_of(number: int, rewards: Sequence[float], samples_each: int = 1, turns: Sequence[int] = (2, 3)) -> TrainGroup:
    samples = [
        Sample(f"{number}.{i}", number, "task", record_of(turns), reward, success=reward > 0)
        for i, reward in enumerate(rewards)
        for _ in range(samples_each)
    ]
    return TrainGroup(number, "task", samples)


def record_of(turns: Sequence[int]) -> TokenRecord:
    """An observed token before each turn."""
    versions = np.concatenate([[OBSERVED, *[0] * count] for count in turns]).astype(np.int32)
    return TokenRecord(np.zeros(len(versions), np.int32), np.zeros(len(versions), np.float32), versions)
