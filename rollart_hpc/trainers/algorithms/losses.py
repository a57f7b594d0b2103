"""Losses per token. Owns every policy loss; entropy, KL and corrections are added by `objective`.

Ratios are to `tokens.anchor`: log-probs at sampling, or with decoupled: true those before the update. Advantages carry
no gradient. `g` below is the factor in the gradient: d loss / d log-prob = -g * advantage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rollart_hpc.config.algorithms import Part, entry
from rollart_hpc.config.fields import key
from rollart_hpc.trainers.algorithms.tokens import Tokens, limited

if TYPE_CHECKING:
    from torch import Tensor

_SOFT_LIMIT = 100.0  # beyond it a sigmoid is 0 or 1


class TokenLoss(NamedTuple):
    """`is_clipped`: tokens whose gradient the loss has set to zero or bounded; None = it never does."""

    loss: Tensor
    is_clipped: Tensor | None = None


@dataclass(frozen=True)
class PpoParams:
    clip_low: float = key(0.2, "the ratio is clipped at 1 - clip_low", low=0, high=1)
    clip_high: float = key(0.2, "the ratio is clipped at 1 + clip_high; DAPO: 0.28", low=0)
    dual_clip: float = key(
        3.0, "with a negative advantage, the ratio from which the loss grows no more; at most 1 = no such bound", low=0
    )


@entry(
    Part.LOSS, "ppo", "clipped ratio times advantage; dual clip bounds the loss of unlikely tokens that became likely",
    paper="arXiv 1707.06347, 1912.09729, 2503.14476", params=PpoParams,
)  # fmt: skip
def ppo(tokens: Tokens, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float = 3.0) -> TokenLoss:
    return _clipped(tokens.ratio, tokens.advantages, clip_low, clip_high, dual_clip)


@entry(Part.LOSS, "reinforce", "log-prob times advantage, without a ratio (g = 1)", paper="Williams 1992")
def reinforce(tokens: Tokens) -> TokenLoss:
    return _weighted(tokens, tokens.new.new_ones(len(tokens.new)))


@dataclass(frozen=True)
class GspoParams:
    clip_low: float = key(3e-4, "the ratio is clipped at 1 - clip_low", low=0, high=1)
    clip_high: float = key(4e-4, "the ratio is clipped at 1 + clip_high", low=0)


@entry(
    Part.LOSS, "gspo", "PPO's clip of the geometric mean of a sample's ratios; take aggregation sample_mean with it",
    paper="arXiv 2507.18071", params=GspoParams,
)  # fmt: skip
def gspo(tokens: Tokens, *, clip_low: float = 3e-4, clip_high: float = 4e-4) -> TokenLoss:
    mean = limited(tokens.over_samples(limited((tokens.new - tokens.anchor).detach())))
    ratio = (mean + tokens.new - tokens.new.detach()).exp()
    return _clipped(ratio, tokens.advantages, clip_low, clip_high, 0.0)


@dataclass(frozen=True)
class CispoParams:
    low: float = key(0.0, "smallest weight of a token", low=0)
    high: float = key(5.0, "largest weight of a token", low=0)


@entry(
    Part.LOSS, "cispo", "log-prob times advantage, weighted by the clipped ratio: no token loses its gradient",
    paper="arXiv 2506.13585", params=CispoParams,
)  # fmt: skip
def cispo(tokens: Tokens, *, low: float = 0.0, high: float = 5.0) -> TokenLoss:
    ratio = tokens.ratio.detach()
    return _weighted(tokens, ratio.clamp(low, high), (ratio < low) | (ratio > high))


@dataclass(frozen=True)
class ToprParams:
    ratio: str = key(
        "token",
        "the ratio of negatives",
        choices={
            "token": "of each token",
            "turn": "geometric mean over the turn (IPA, arXiv 2512.24873)",
            "sample": "of the whole sample, as in the paper; tiny for long samples",
        },
    )


@entry(
    Part.LOSS, "topr", "plays with a positive reward without a ratio, all others weighted by the ratio, at most 1",
    paper="arXiv 2503.14286", params=ToprParams,
)  # fmt: skip
def topr(tokens: Tokens, *, ratio: str = "token") -> TokenLoss:
    log_ratio = (tokens.new - tokens.anchor).detach()
    over = {"token": lambda values: values, "turn": tokens.over_turns, "sample": tokens.summed}[ratio]
    shrunk = limited(over(limited(log_ratio))).exp().clamp(max=1.0)
    return _weighted(tokens, shrunk.where(tokens.rewards <= 0, shrunk.new_ones(())))


@dataclass(frozen=True)
class KimiParams:
    tau: float = key(0.1, "strength of the pull to the anchor", low=0)


@entry(
    Part.LOSS, "kimi", "log-prob times advantage, plus tau / 2 times the squared log-ratio of each token",
    paper="arXiv 2501.12599", params=KimiParams,
)  # fmt: skip
def kimi(tokens: Tokens, *, tau: float = 0.1) -> TokenLoss:
    plain = _weighted(tokens, tokens.new.new_ones(len(tokens.new)))
    return plain._replace(loss=plain.loss + 0.5 * tau * limited(tokens.new - tokens.anchor) ** 2)


@dataclass(frozen=True)
class RaftParams:
    clip_low: float = key(0.2, "the ratio is clipped at 1 - clip_low", low=0, high=1)
    clip_high: float = key(0.2, "the ratio is clipped at 1 + clip_high", low=0)


@entry(
    Part.LOSS, "raft_pp", "PPO's clip on plays with a positive reward, which is their advantage; uses no estimator",
    paper="arXiv 2504.11343", params=RaftParams,
)  # fmt: skip
def raft_pp(tokens: Tokens, *, clip_low: float = 0.2, clip_high: float = 0.2) -> TokenLoss:
    return _clipped(tokens.ratio, tokens.rewards.clamp(min=0.0), clip_low, clip_high, 0.0)


@dataclass(frozen=True)
class SapoParams:
    tau_positive: float = key(1.0, "steepness for positive advantages", low=0.01)
    tau_negative: float = key(1.05, "steepness for all others", low=0.01)


@entry(
    Part.LOSS, "sapo", "a smooth gate of the ratio instead of a clip", paper="arXiv 2511.20347", params=SapoParams
)  # fmt: skip
def sapo(tokens: Tokens, *, tau_positive: float = 1.0, tau_negative: float = 1.05) -> TokenLoss:
    tau = tokens.new.new_full((len(tokens.new),), tau_negative).masked_fill(tokens.advantages > 0, tau_positive)
    gate = (tau * (tokens.ratio - 1.0)).clamp(-_SOFT_LIMIT, _SOFT_LIMIT).sigmoid() * 4.0 / tau
    return TokenLoss(-tokens.advantages * gate)


@dataclass(frozen=True)
class DppoParams:
    low: float = key(0.2, "largest fall of a probability that is still pushed down", low=0, high=1)
    high: float = key(0.2, "largest rise of a probability that is still pushed up", low=0, high=1)
    cap: float = key(20.0, "largest ratio", low=1)


@entry(
    Part.LOSS, "dppo", "ratio times advantage, but not for tokens whose probability itself has moved far already",
    paper="arXiv 2602.04879", params=DppoParams,
)  # fmt: skip
def dppo(tokens: Tokens, *, low: float = 0.2, high: float = 0.2, cap: float = 20.0) -> TokenLoss:
    moved = (tokens.new.exp() - tokens.anchor.exp()).detach()
    is_far = ((tokens.advantages > 0) & (moved > high)) | ((tokens.advantages < 0) & (moved < -low))
    weight = tokens.ratio.detach().clamp(max=cap)
    return _weighted(tokens, weight.masked_fill(is_far, 0.0), is_far)


# --- shared ----------------------------------------------------------------------------------


def _clipped(ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float) -> TokenLoss:
    free, clipped = -ratio * advantages, -ratio.clamp(1.0 - low, 1.0 + high) * advantages
    loss, is_clipped = free.maximum(clipped), clipped > free
    if dual > 1.0:
        is_steep = (advantages < 0) & (loss > -dual * advantages)
        loss, is_clipped = loss.where(~is_steep, -dual * advantages), is_clipped | is_steep
    return TokenLoss(loss, is_clipped)


def _weighted(tokens: Tokens, weight: Tensor, is_clipped: Tensor | None = None) -> TokenLoss:
    return TokenLoss(-weight * tokens.advantages * tokens.new, is_clipped)
