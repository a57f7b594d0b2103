"""The algorithm of one run: its parts, found once, with their parameters. Owns the order in which they are applied.

shaping of rewards -> estimator -> shaping of advantages                     as groups arrive, or for the batch
loss x corrections - entropy bonus + KL penalty, weighted by aggregation     for each micro-batch
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rollart_hpc.config.algorithms import Part, Stage, find, full_params
from rollart_hpc.config.schema import AlgorithmConfig
from rollart_hpc.trainers.algorithms.aggregations import Size
from rollart_hpc.trainers.algorithms.divergences import adapted
from rollart_hpc.trainers.algorithms.estimators import returns_of
from rollart_hpc.trainers.algorithms.losses import TokenLoss
from rollart_hpc.trainers.algorithms.plays import (
    Advantage,
    Array,
    Play,
    by_trajectory,
    give,
    per_token,
    plays_of,
    trainable,
    with_rewards,
)
from rollart_hpc.trainers.algorithms.tokens import Tokens
from rollart_hpc.types import Sample, TrainGroup

if TYPE_CHECKING:
    from torch import Tensor

DEFAULT_CORRECTIONS: dict[str, Any] = {"token": {}}  # of decoupled: true


class TokenTerms(NamedTuple):
    """The terms of a token's loss. `entropy` and `kl` are None if the algorithm does not use them."""

    loss: Tensor
    is_clipped: Tensor | None
    proximal: Tensor  # log-probs before the step's first update
    ratio: Tensor  # proximal / behaviour
    correction: Tensor | None
    entropy: Tensor | None
    kl: Tensor | None


class Objective:
    def __init__(self, algorithm: AlgorithmConfig, token_limits: Mapping[str, int] | None = None) -> None:
        """`token_limits`: max_tokens by task."""
        self._algorithm = algorithm
        self._limits = token_limits or {}
        self.kl = algorithm.kl  # the coefficient now
        self._estimate = _function(Part.ESTIMATOR, algorithm.estimator, algorithm.estimator_params)
        self._returns: Callable[[Play], Array] | None = None
        if algorithm.needs_critic:
            self._returns = partial(returns_of, **algorithm.estimator_params)
        self._loss = _function(Part.LOSS, algorithm.loss, algorithm.loss_params)
        self._kl = _function(Part.KL, algorithm.kl_estimator, {})
        corrections = algorithm.corrections or (DEFAULT_CORRECTIONS if algorithm.decoupled else {})
        self._corrections = [_function(Part.CORRECTION, *named) for named in corrections.items()]
        self._shaping: dict[Stage, list[Callable[..., Any]]] = {stage: [] for stage in Stage}
        for name, params in algorithm.shaping.items():
            self._shaping[find(Part.SHAPING, name).stage].append(_function(Part.SHAPING, name, params))
        self._weight = _function(Part.AGGREGATION, algorithm.aggregation, algorithm.aggregation_params)
        self._unit = find(Part.AGGREGATION, algorithm.aggregation).unit

    # --- groups ------------------------------------------------------------------------------

    def assign(self, groups: Sequence[TrainGroup]) -> None:
        """Give every sample its advantages. `groups`: a chunk, or the whole batch if a part needs it."""
        plays = [plays_of(group, self._limits.get(group.task, 0)) for group in groups]
        left_out = [shape(plays) for shape in self._shaping[Stage.PLAYS]]
        for shape in self._shaping[Stage.REWARDS]:
            plays = with_rewards(plays, shape(plays))
        advantages: Sequence[Sequence[Advantage]] = self._estimate(plays)
        if self._shaping[Stage.ADVANTAGES]:
            advantages = [
                [per_token(a, play.num_tokens) for a, play in zip(values, members, strict=True)]
                for values, members in zip(advantages, plays, strict=True)
            ]
            for shape in self._shaping[Stage.ADVANTAGES]:
                advantages = shape(advantages)
        for i, (group, values) in enumerate(zip(groups, advantages, strict=True)):
            give(group, values, [self._returns(play) for play in plays[i]] if self._returns else None)
            for verdicts in left_out:
                _leave_out(group, verdicts[i])

    def weights(self, group: TrainGroup) -> list[float]:
        """The weight of a token of each sample; 1 for a sample without tokens."""
        own = [len(trainable(sample)) for sample in group.samples]
        of_trajectory: dict[str, int] = {}
        for sample, count in zip(group.samples, own):
            of_trajectory[sample.trajectory] = of_trajectory.get(sample.trajectory, 0) + count
        sizes = [Size(count, of_trajectory[sample.trajectory], sum(own)) for sample, count in zip(group.samples, own)]
        return [float(self._weight(size)) if size.sample else 1.0 for size in sizes]

    def adapt(self, measured: float, trajectories: int) -> None:
        """Move the coefficient of the KL so that the measured KL comes near its target."""
        if self._algorithm.kl_target:
            self.kl = adapted(self.kl, measured / self._algorithm.kl_target, trajectories / self._algorithm.kl_horizon)

    def total(self, *, tokens: int, samples: int, trajectories: int, groups: int) -> int:
        """The divisor of an update's summed losses; 1 for one without tokens."""
        counts = {"tokens": tokens, "samples": samples, "trajectories": trajectories, "groups": groups}
        return max(1, counts[self._unit.value])

    # --- tokens ------------------------------------------------------------------------------

    def terms(self, tokens: Tokens, *, entropy: Tensor | None, reference: Tensor | None) -> TokenTerms:
        """`entropy`: of the new distributions; `reference`: log-probs of the sampled tokens under the reference."""
        is_reward = self._algorithm.kl_in == "reward"
        kl = None if reference is None else self._kl((tokens.proximal if is_reward else tokens.new) - reference)
        if kl is not None and is_reward:
            tokens = self._penalised(tokens, kl)
        found = self._loss(tokens)
        found = found if isinstance(found, TokenLoss) else TokenLoss(found)
        loss, correction = found.loss, self._correction(tokens)
        if correction is not None:
            loss = loss * correction
        if entropy is not None:
            loss = loss - self._algorithm.entropy * entropy
        if kl is not None and not is_reward:
            loss = loss + self.kl * (kl * tokens.ratio if self._algorithm.kl_weighted else kl)
        return TokenTerms(loss, found.is_clipped, tokens.proximal, tokens.weight, correction, entropy, kl)

    def _penalised(self, tokens: Tokens, kl: Tensor) -> Tokens:
        """Advantages minus the KL that a token and those after it in its sample will cost."""
        return replace(tokens, advantages=tokens.advantages - self.kl * tokens.to_go(kl))

    def _correction(self, tokens: Tokens) -> Tensor | None:
        product: Tensor | None = None
        for correct in self._corrections:
            weight = correct(tokens).detach()
            product = weight if product is None else product * weight
        return product


def _function(part: Part, name: str, params: Mapping[str, Any] | None) -> Callable[..., Any]:
    found = find(part, name)
    return partial(found.function, **full_params(found, params or {}))


def _leave_out(group: TrainGroup, verdicts: Sequence[bool]) -> None:
    for samples, is_out in zip(by_trajectory(group).values(), verdicts, strict=True):
        for sample in samples:
            sample.is_left_out = sample.is_left_out or bool(is_out)


def trajectory_rewards(samples: Sequence[Sample]) -> dict[str, float]:
    """Rewards by trajectory: one with several samples counts once."""
    return {sample.trajectory: sample.reward for sample in samples}


def assign_advantages(groups: Sequence[TrainGroup], algorithm: AlgorithmConfig) -> None:
    Objective(algorithm).assign(groups)
