"""Weights for tokens that another policy sampled: an older version, or an engine that rounds otherwise.

A correction returns a weight per token, by which its loss is multiplied; 0 masks it. Several are multiplied. `weight`
is the token's probability before the update over that at sampling. The step's total is fixed before anything is masked,
so a mask never makes the other tokens count more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollart_hpc.config.algorithms import Part, entry
from rollart_hpc.config.fields import key
from rollart_hpc.trainers.algorithms.tokens import Tokens, limited

if TYPE_CHECKING:
    from torch import Tensor

_HOW = {"truncate": "pull it to the nearest bound", "mask": "leave the token out"}


def _how() -> str:
    found: str = key("truncate", "what is done with a weight outside of low and high", choices=_HOW)
    return found


@dataclass(frozen=True)
class TokenParams:
    low: float = key(0.0, "smallest weight", low=0)
    high: float = key(2.0, "largest weight", low=0)
    how: str = _how()


@dataclass(frozen=True)
class NarrowParams:
    low: float = key(0.0, "smallest weight", low=0)
    high: float = key(1.2, "largest weight", low=0)
    how: str = _how()


@dataclass(frozen=True)
class BoundParams:
    low: float = key(0.99, "smallest geometric mean that is kept", low=0)
    high: float = key(1.01, "largest geometric mean that is kept", low=0)


@dataclass(frozen=True)
class TurnBoundParams:
    low: float = key(0.8, "smallest geometric mean that is kept", low=0)
    high: float = key(1.2, "largest geometric mean that is kept", low=0)


@dataclass(frozen=True)
class VetoParams:
    low: float = key(1e-4, "smallest weight that a token may have", low=0)
    high: float = key(1e4, "largest weight that a token may have", low=0)


@dataclass(frozen=True)
class DriftParams:
    delta: float = key(0.5, "largest mean fall of the log-prob since sampling, in nats per token", low=0)


@entry(Part.CORRECTION, "none", "every token counts as it is, however old")
def none(tokens: Tokens) -> Tensor:
    return tokens.behaviour.new_ones(len(tokens.behaviour))


@entry(
    Part.CORRECTION, "token", "weight of each token; truncated: TIS, masked: IcePop",
    paper="arXiv 2505.24298", params=TokenParams, weighs=True,
)  # fmt: skip
def token(tokens: Tokens, *, low: float = 0.0, high: float = 2.0, how: str = "truncate") -> Tensor:
    return _bounded(tokens.weight, low, high, how)


@entry(
    Part.CORRECTION, "sequence", "product of the weights of a sample; reaches its bounds soon if samples are long",
    params=TokenParams, weighs=True,
)  # fmt: skip
def sequence(tokens: Tokens, *, low: float = 0.0, high: float = 2.0, how: str = "truncate") -> Tensor:
    return _bounded(limited(tokens.summed(_log_weight(tokens))).exp(), low, high, how)


@entry(
    Part.CORRECTION, "geometric", "geometric mean of the weights of a sample", params=NarrowParams, weighs=True
)  # fmt: skip
def geometric(tokens: Tokens, *, low: float = 0.0, high: float = 1.2, how: str = "truncate") -> Tensor:
    return _bounded(tokens.over_samples(_log_weight(tokens)).exp(), low, high, how)


@entry(
    Part.CORRECTION, "turn", "geometric mean of the weights of a turn", paper="arXiv 2512.24873",
    params=NarrowParams, weighs=True,
)  # fmt: skip
def turn(tokens: Tokens, *, low: float = 0.0, high: float = 1.2, how: str = "truncate") -> Tensor:
    return _bounded(tokens.over_turns(_log_weight(tokens)).exp(), low, high, how)


@entry(
    Part.CORRECTION, "geometric_mask", "leave out samples whose geometric mean of weights is out of bounds",
    params=BoundParams,
)  # fmt: skip
def geometric_mask(tokens: Tokens, *, low: float = 0.99, high: float = 1.01) -> Tensor:
    return _inside(tokens.over_samples(_log_weight(tokens)).exp(), low, high)


@entry(
    Part.CORRECTION, "turn_mask", "leave out turns whose geometric mean of weights is out of bounds",
    paper="arXiv 2512.24873", params=TurnBoundParams,
)  # fmt: skip
def turn_mask(tokens: Tokens, *, low: float = 0.8, high: float = 1.2) -> Tensor:
    return _inside(tokens.over_turns(_log_weight(tokens)).exp(), low, high)


@entry(Part.CORRECTION, "veto", "leave out samples in which any token's weight is out of bounds", params=VetoParams)
def veto(tokens: Tokens, *, low: float = 1e-4, high: float = 1e4) -> Tensor:
    outside = 1.0 - _inside(tokens.weight, low, high)
    return (tokens.summed(outside) == 0).to(outside.dtype)


@entry(
    Part.CORRECTION, "drift_mask",
    "leave out samples with a negative advantage that the policy would hardly sample any more (OPSM)",
    paper="arXiv 2512.02556", params=DriftParams,
)  # fmt: skip
def drift_mask(tokens: Tokens, *, delta: float = 0.5) -> Tensor:
    fell = tokens.over_samples(-_log_weight(tokens)) > delta
    return (~(fell & (tokens.over_samples(tokens.advantages) < 0))).to(tokens.behaviour.dtype)


# --- shared ----------------------------------------------------------------------------------


def _log_weight(tokens: Tokens) -> Tensor:
    return limited(tokens.proximal - tokens.behaviour)


def _inside(values: Tensor, low: float, high: float) -> Tensor:
    return ((values >= low) & (values <= high)).to(values.dtype)


def _bounded(weight: Tensor, low: float, high: float, how: str) -> Tensor:
    return weight.clamp(low, high) if how == "truncate" else weight * _inside(weight, low, high)
