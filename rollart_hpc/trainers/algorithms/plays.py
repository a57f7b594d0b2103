"""A trajectory as estimators and shapings see it, and the way from samples to plays and back. Knows no estimator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rollart_hpc.errors import UserError
from rollart_hpc.types import Sample, TrainGroup

Array = NDArray[np.float64]
Advantage = float | Array  # of all tokens of a play, or one per token


@dataclass(frozen=True, slots=True)
class Play:
    """One trajectory, however many samples it has. `turn_of` has a value for every token that can be trained."""

    reward: float
    turn_of: NDArray[np.int64]  # 0 for the tokens of its first answer, 1 for those of the second, ...
    success: bool = False
    is_cut: bool = False  # ended by max_tokens or max_turns
    num_observed: int = 0  # tokens that the policy did not sample
    states: tuple[int, ...] = ()  # a key of the observation before each turn; () = unknown
    token_limit: int = 0  # max_tokens of its task; 0 = unknown
    turn_rewards: tuple[float, ...] = ()  # () = unknown
    values: Array | None = None  # of a critic, one per token

    @property
    def num_tokens(self) -> int:
        return len(self.turn_of)

    @property
    def num_turns(self) -> int:
        return int(self.turn_of[-1]) + 1 if len(self.turn_of) else 0

    @property
    def by_turn(self) -> Array:
        """What each turn earned. They add up to `reward`: what no turn was given, the last one earned."""
        found = np.zeros(self.num_turns)
        known = self.turn_rewards[: self.num_turns]
        found[: len(known)] = known
        if len(found):
            found[-1] += self.reward - found.sum()
        return found

    @property
    def by_token(self) -> Array:
        """What each token earned: a turn's reward stands at its last token."""
        is_last = np.diff(self.turn_of, append=self.num_turns) > 0
        found = np.zeros(self.num_tokens)
        found[is_last] = self.by_turn
        return found


Group = Sequence[Play]


def trainable(sample: Sample) -> NDArray[np.int64]:
    """Places p such that token p + 1 was sampled. The first token has no place: no token before it predicts it."""
    return np.flatnonzero(sample.record.sampled[1:])


def turn_starts(places: NDArray[np.int64]) -> NDArray[np.bool_]:
    """True where an answer begins: the token before it was not sampled."""
    return np.diff(places, prepend=-2) != 1


def by_trajectory(group: TrainGroup) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = {}
    for sample in group.samples:
        found.setdefault(sample.trajectory, []).append(sample)
    return found


def plays_of(group: TrainGroup, token_limit: int = 0) -> list[Play]:
    return [_play(samples, token_limit) for samples in by_trajectory(group).values()]


def _play(samples: list[Sample], token_limit: int) -> Play:
    places = [trainable(sample) for sample in samples]
    starts = np.concatenate([turn_starts(p) for p in places])
    first = samples[0]
    values = [sample.values for sample, p in zip(samples, places) if len(p)]
    known = [part for part in values if part is not None]
    return Play(
        reward=first.reward,
        turn_of=np.cumsum(starts) - 1,
        success=first.success,
        is_cut=first.is_cut,
        num_observed=sum(int(np.count_nonzero(~s.record.sampled)) for s in samples),
        states=tuple(first.states),
        token_limit=token_limit,
        turn_rewards=tuple(first.turn_rewards),
        values=np.concatenate(known).astype(np.float64) if known and len(known) == len(values) else None,
    )


def give(group: TrainGroup, advantages: Sequence[Advantage], returns: Sequence[Array] | None = None) -> None:
    """Give every sample its part of its trajectory's advantages, and of what a critic shall learn."""
    for i, (samples, advantage) in enumerate(zip(by_trajectory(group).values(), advantages, strict=True)):
        for sample, part in zip(samples, _split(samples, advantage), strict=True):
            sample.advantages = part
        for sample, part in zip(samples, _split(samples, returns[i]) if returns is not None else ()):
            sample.returns = part


def _split(samples: Sequence[Sample], values: Advantage) -> list[NDArray[np.float32]]:
    counts = [len(trainable(sample)) for sample in samples]
    parts = np.split(per_token(values, sum(counts)), np.cumsum(counts)[:-1])
    return [part.astype(np.float32) for part in parts]


def per_token(advantage: Advantage, count: int) -> Array:
    values = np.asarray(advantage, np.float64)
    if values.ndim == 0:
        return np.full(count, values)
    if values.shape != (count,):
        what = f"the estimator returned advantages of shape {values.shape} for a play of {count} sampled tokens"
        raise UserError(what, "return one number per play, or an array with one per token (docs/algorithms.md)")
    return values


def with_rewards(groups: Sequence[Group], rewards: Sequence[Sequence[float]]) -> list[list[Play]]:
    return [
        [replace(play, reward=float(reward)) for play, reward in zip(group, values, strict=True)]
        for group, values in zip(groups, rewards, strict=True)
    ]


def rewards_of(group: Group) -> Array:
    return np.fromiter((play.reward for play in group), np.float64, len(group))
