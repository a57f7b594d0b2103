"""KL to the reference per token, estimated from the sampled token alone. `log_ratio`: new - reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollart_hpc.config.algorithms import Part, entry
from rollart_hpc.trainers.algorithms.tokens import limited

if TYPE_CHECKING:
    from torch import Tensor

_LIMIT = 10.0  # per token
_NOTE = "Schulman 2020, Approximating KL divergence"


@entry(Part.KL, "k1", "the log-ratio: right on average, in the loss without a gradient on average", paper=_NOTE)
def k1(log_ratio: Tensor) -> Tensor:
    return limited(log_ratio)


@entry(Part.KL, "k2", "half the squared log-ratio: its gradient is that of the reverse KL", paper=_NOTE)
def k2(log_ratio: Tensor) -> Tensor:
    return 0.5 * limited(log_ratio) ** 2


@entry(Part.KL, "k3", "right on average and never negative; bounded by 10 per token", paper=_NOTE)
def k3(log_ratio: Tensor) -> Tensor:
    gap = limited(-log_ratio)
    return (gap.expm1() - gap).clamp(max=_LIMIT)


def adapted(coefficient: float, excess: float, share: float) -> float:
    """The next coefficient. `excess`: measured KL over its target; `share`: trajectories of the step over the horizon.

    The controller of Ziegler et al. 2019: at most 20% of `share` at a time.
    """
    return coefficient * (1.0 + max(-0.2, min(0.2, excess - 1.0)) * share)
