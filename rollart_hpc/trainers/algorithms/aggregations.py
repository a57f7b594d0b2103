"""How token losses become the loss of a step. Owns the weight of a token; knows no loss.

A step's loss is  sum over sampled tokens of  weight * loss,  divided once by the step's number of units. Because it is
a sum, it can be computed in any number of pieces (micro-batches, chunks, ranks).
"""

from __future__ import annotations

from dataclasses import dataclass

from rollart_hpc.config.algorithms import Part, Unit, entry
from rollart_hpc.config.fields import key


@dataclass(frozen=True)
class Size:
    """Sampled tokens of a sample, of its trajectory and of its group."""

    sample: int
    trajectory: int
    group: int


@entry(Part.AGGREGATION, "token_mean", "mean over all sampled tokens", paper="arXiv 2503.14476", unit=Unit.TOKENS)
def token_mean(size: Size) -> float:
    return 1.0


@entry(
    Part.AGGREGATION, "sample_mean", "mean over the tokens of each sample, then over samples",
    paper="arXiv 2402.03300", unit=Unit.SAMPLES,
)  # fmt: skip
def sample_mean(size: Size) -> float:
    return 1.0 / size.sample


@entry(
    Part.AGGREGATION, "sample_sum", "sum over the tokens of each sample, then mean over samples", unit=Unit.SAMPLES
)  # fmt: skip
def sample_sum(size: Size) -> float:
    return 1.0


@dataclass(frozen=True)
class ConstantParams:
    length: int = key(1024, "the constant: the largest number of tokens that a sample may have", low=1)


@entry(
    Part.AGGREGATION, "constant", "sum over the tokens of each sample over a constant length, then mean over samples",
    paper="arXiv 2503.20783", params=ConstantParams, unit=Unit.SAMPLES,
)  # fmt: skip
def constant(size: Size, *, length: int = 1024) -> float:
    return 1.0 / length


@entry(
    Part.AGGREGATION, "trajectory_mean", "mean over the tokens of each trajectory, then over trajectories",
    unit=Unit.TRAJECTORIES,
)  # fmt: skip
def trajectory_mean(size: Size) -> float:
    return 1.0 / size.trajectory


@entry(
    Part.AGGREGATION, "group_mean", "mean over the tokens of each group, then over groups", paper="as in SkyRL",
    unit=Unit.GROUPS,
)  # fmt: skip
def group_mean(size: Size) -> float:
    return 1.0 / size.group
