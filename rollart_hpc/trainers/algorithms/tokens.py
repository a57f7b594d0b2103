"""Sampled tokens of whole samples, as losses and corrections see them. Owns ratios and sums over samples and turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO_LIMIT = 20.0  # exp(20) is far beyond every clip, and stays finite in sums over a batch


@dataclass(frozen=True)
class Tokens:
    """One value per sampled token in each tensor. Only `new` carries a gradient."""

    new: Tensor  # log-probs under the policy being updated
    behaviour: Tensor  # log-probs at sampling
    advantages: Tensor
    rewards: Tensor  # of the token's trajectory, before shaping
    samples: Tensor  # number of the token's sample
    turns: Tensor  # number of the token's turn, over all samples
    num_samples: int
    num_turns: int
    is_decoupled: bool = False
    stored: Tensor | None = None  # log-probs before the first of several updates

    @property
    def proximal(self) -> Tensor:
        """Log-probs under the policy before the step's first update; with one update these are the new ones."""
        return self.new.detach() if self.stored is None else self.stored

    @property
    def anchor(self) -> Tensor:
        """The log-probs that ratios are taken to."""
        return self.proximal if self.is_decoupled else self.behaviour

    @property
    def ratio(self) -> Tensor:
        return ratio_of(self.new, self.anchor)

    @property
    def weight(self) -> Tensor:
        """How much more likely the token is before the update than it was at sampling."""
        return ratio_of(self.proximal, self.behaviour)

    def over_samples(self, values: Tensor) -> Tensor:
        """The mean over the sample, for each of its tokens."""
        return _means(values, self.samples, self.num_samples)[self.samples]

    def over_turns(self, values: Tensor) -> Tensor:
        return _means(values, self.turns, self.num_turns)[self.turns]

    def summed(self, values: Tensor) -> Tensor:
        """The sum over the sample, for each of its tokens."""
        return _sums(values, self.samples, self.num_samples)[self.samples]

    def to_go(self, values: Tensor) -> Tensor:
        """The sum over the token itself and the later ones of its sample."""
        upto = values.cumsum(0) - values
        before = self.new.new_zeros(self.num_samples, dtype=values.dtype).index_add(0, self.samples, values).cumsum(0)
        return before[self.samples] - upto


def _sums(values: Tensor, index: Tensor, count: int) -> Tensor:
    return values.new_zeros(count).index_add(0, index, values)


def _means(values: Tensor, index: Tensor, count: int) -> Tensor:
    return _sums(values, index, count) / _sums(values.new_ones(len(values)), index, count).clamp(min=1)


def ratio_of(new: Tensor, old: Tensor) -> Tensor:
    """exp(new - old), finite for all finite log-probs: a single token must not spoil a step."""
    return limited(new - old).exp()


def limited(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def entropy_of(logprobs: Tensor) -> Tensor:
    """Entropy of each row of log-probs [tokens, vocabulary]."""
    return -(logprobs.exp() * logprobs).sum(-1)
