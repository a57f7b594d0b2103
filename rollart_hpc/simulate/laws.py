"""How a quantity is spread: seconds of an environment, tokens of an answer, turns of a play. Draws nothing itself.

A law turns a standard normal number into a value. Whoever draws these numbers decides which values go together: the
same number gives the same value in every mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import erf, exp, log, sqrt
from statistics import fmean, pstdev

_QUANTILES = 64
_SQRT2 = sqrt(2.0)


@dataclass(frozen=True)
class Law:
    """Lognormal with this mean and coefficient of variation, or `normal`, or as measured; cut to low..high."""

    mean: float
    cv: float = 0.0
    low: float = 0.0
    high: float = float("inf")
    normal: bool = False
    table: tuple[float, ...] = ()  # quantiles, evenly spaced

    def __post_init__(self) -> None:
        sigma2 = log(1 + self.cv * self.cv)
        is_log = self.mean > 0 and not self.normal and not self.table
        object.__setattr__(self, "_sigma", sqrt(sigma2) if is_log else self.cv * self.mean)
        object.__setattr__(self, "_mu", log(self.mean) - sigma2 / 2 if is_log else self.mean)

    _sigma: float = 0.0
    _mu: float = 0.0

    def at(self, z: float) -> float:
        """The value for a standard normal number."""
        if self.table:
            value = self._measured(z)
        elif self.normal or self.mean <= 0:
            value = self._mu + self._sigma * z
        else:
            value = exp(self._mu + self._sigma * z)
        return min(self.high, max(self.low, value))

    def _measured(self, z: float) -> float:
        place = 0.5 * (1 + erf(z / _SQRT2)) * (len(self.table) - 1)
        below = min(int(place), len(self.table) - 2) if len(self.table) > 1 else 0
        above = min(below + 1, len(self.table) - 1)
        return self.table[below] + (place - below) * (self.table[above] - self.table[below])


def measured(values: Sequence[float]) -> Law:
    """A law with the quantiles of these values."""
    ordered = sorted(values)
    count = min(_QUANTILES, len(ordered))
    table = tuple(ordered[round(i * (len(ordered) - 1) / max(1, count - 1))] for i in range(count))
    mean = fmean(ordered)
    return Law(mean, pstdev(ordered) / mean if mean else 0.0, table=table)
