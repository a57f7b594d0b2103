"""The objective, as pure functions. Owns advantages, token losses and how they are summed; knows no model and no rank.

A step's loss is  sum over sampled tokens of  weight(t) * loss(t),  divided once by the step's total:

    aggregation   weight of a token               total
    token_mean    1                               sampled tokens
    sample_mean   1 / sampled tokens of its sample  samples
    sample_sum    1                               samples

Because it is a sum, it can be computed in any number of pieces (micro-batches, chunks, ranks).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rollart_hpc.config.schema import AlgorithmConfig, TrainerConfig
from rollart_hpc.types import Sample, TrainGroup

_STD_FLOOR = 1e-6
_LOG_RATIO_LIMIT = 20.0  # exp(20) is far beyond every clip, and finite also after sums over a batch
_KL_LIMIT = 10.0  # per token
_DUAL_CLIP = 3.0
_WEIGHT_CAP = 2.0  # of decoupled


# --- advantages ------------------------------------------------------------------------------


def grpo_advantages(rewards: NDArray[np.float64], normalise_std: bool) -> NDArray[np.float64]:
    """Reward relative to the group's mean, in units of its standard deviation."""
    centred = reinforce_advantages(rewards)
    if not normalise_std or len(rewards) < 2:
        return centred
    return centred / (rewards.std(ddof=1) + _STD_FLOOR)


def reinforce_advantages(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Reward relative to the mean."""
    return rewards - rewards.mean() if len(rewards) else rewards


def assign_advantages(groups: Sequence[TrainGroup], algorithm: AlgorithmConfig) -> None:
    """Give every sample its trajectory's advantage. `groups`: a chunk, or the whole batch if the algorithm needs it."""
    if algorithm.needs_whole_batch:
        samples = [sample for group in groups for sample in group.samples]
        rewards = trajectory_rewards(samples)
        _give(samples, rewards, reinforce_advantages(_values(rewards)))
        return
    for group in groups:
        rewards = trajectory_rewards(group.samples)
        _give(group.samples, rewards, grpo_advantages(_values(rewards), algorithm.normalise_std))


def trajectory_rewards(samples: Sequence[Sample]) -> dict[str, float]:
    """Rewards by trajectory: one with several samples counts once."""
    return {sample.trajectory: sample.reward for sample in samples}


def _values(rewards: dict[str, float]) -> NDArray[np.float64]:
    return np.fromiter(rewards.values(), np.float64, len(rewards))


def _give(samples: Sequence[Sample], rewards: dict[str, float], advantages: NDArray[np.float64]) -> None:
    by_trajectory = dict(zip(rewards, advantages.tolist(), strict=True))
    for sample in samples:
        sample.advantage = by_trajectory[sample.trajectory]


# --- token losses ----------------------------------------------------------------------------


class TokenLoss(NamedTuple):
    """One value per sampled token in each tensor. `ratio` and `is_clipped` carry no gradient."""

    loss: torch.Tensor
    ratio: torch.Tensor  # new / behaviour
    is_clipped: torch.Tensor


def policy_loss(
    new: torch.Tensor,
    behaviour: torch.Tensor,
    advantages: torch.Tensor,
    *,
    clip_low: float,
    clip_high: float,
    proximal: torch.Tensor | None = None,
) -> TokenLoss:
    """PPO's clipped loss, relative to the log-probs with which the tokens were sampled.

    Dual clip (arXiv 1912.09729): a token with a negative advantage that became much more likely since it was sampled
    would have an unbounded loss; it counts at most as if it had become three times as likely.

    With `proximal` (decoupled, as in AReaL) the trust region is around the proximal policy and each token is
    weighted by proximal / behaviour, at most 2, so that old data is corrected but not clipped away.
    """
    anchor = behaviour if proximal is None else proximal
    ratio = ratio_of(new, anchor)
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    free_loss, clipped_loss = -ratio * advantages, -clipped * advantages
    loss = torch.maximum(free_loss, clipped_loss)
    highest = torch.where(advantages < 0, -_DUAL_CLIP * advantages, torch.inf)
    is_clipped = (clipped_loss > free_loss) | (loss > highest)
    loss = torch.minimum(loss, highest)
    if proximal is not None:
        loss = loss * ratio_of(proximal, behaviour).clamp(max=_WEIGHT_CAP).detach()
    with torch.no_grad():
        return TokenLoss(loss, ratio_of(new, behaviour), is_clipped)


def ratio_of(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """exp(new - old), finite for all finite log-probs: a single token must not spoil a step."""
    return torch.exp((new - old).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT))


class TokenTerms(NamedTuple):
    """The terms of a token's loss. `entropy` and `kl` are None if the algorithm does not use them."""

    loss: torch.Tensor
    policy: TokenLoss
    entropy: torch.Tensor | None
    kl: torch.Tensor | None


def token_terms(
    algorithm: AlgorithmConfig,
    new: torch.Tensor,
    *,
    behaviour: torch.Tensor,
    advantages: torch.Tensor,
    entropy: torch.Tensor | None,
    reference: torch.Tensor | None,
) -> TokenTerms:
    """`new`: log-probs of the sampled tokens under the current policy; `entropy`: entropies of its distributions."""
    # One update per batch: the proximal policy is the current policy before the update.
    proximal = new.detach() if algorithm.decoupled else None
    policy = policy_loss(
        new, behaviour, advantages, clip_low=algorithm.clip_low, clip_high=algorithm.clip_high, proximal=proximal
    )
    loss, kl = policy.loss, None
    if entropy is not None:
        loss = loss - algorithm.entropy * entropy
    if reference is not None:
        kl = k3_kl(new, reference)
        loss = loss + algorithm.kl * kl
    return TokenTerms(loss, policy, entropy, kl)


def k3_kl(new: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """KL(new || other) per token, estimated from the sampled token: never negative, low variance, at most 10."""
    gap = (other - new).clamp(-_LOG_RATIO_LIMIT, _LOG_RATIO_LIMIT)
    return (torch.expm1(gap) - gap).clamp(max=_KL_LIMIT)


def entropy_of(logprobs: torch.Tensor) -> torch.Tensor:
    """Entropy of each row of log-probs [tokens, vocabulary]."""
    return -(logprobs.exp() * logprobs).sum(-1)


# --- sums ------------------------------------------------------------------------------------


def token_weight(aggregation: str, num_sampled_tokens: int) -> float:
    """The weight of each token in a sample with this many sampled tokens."""
    return 1.0 / num_sampled_tokens if aggregation == "sample_mean" else 1.0


def step_total(aggregation: str, num_tokens: int, num_samples: int) -> int:
    """The divisor of a step's summed losses; 1 for a step without tokens."""
    return max(1, num_tokens if aggregation == "token_mean" else num_samples)


# --- schedule --------------------------------------------------------------------------------


def learning_rate(trainer: TrainerConfig, step: int, num_steps: int) -> float:
    """For the step `step` -> `step + 1`: linear warm-up, then constant, linear or cosine decay to min_lr_ratio."""
    if step < trainer.warmup_steps:
        return trainer.lr * (step + 1) / trainer.warmup_steps
    if trainer.schedule == "constant":
        return trainer.lr
    done = min(1.0, (step - trainer.warmup_steps) / max(1, num_steps - trainer.warmup_steps))
    left = 1.0 - done if trainer.schedule == "linear" else 0.5 * (1.0 + np.cos(np.pi * done))
    return float(trainer.lr * (trainer.min_lr_ratio + (1.0 - trainer.min_lr_ratio) * left))
