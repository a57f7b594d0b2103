"""The paired difference between two validations on the same held-out seeds. Reads no file.

Prompts differ far more in difficulty than a policy changes from one validation to the next. So only the difference
between the two scores of each prompt shows whether the policy changed.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Paired:
    """Over the seeds that both validations played."""

    plays: int
    before: float
    after: float
    standard_error: float  # of the mean difference

    @property
    def difference(self) -> float:
        return self.after - self.before

    @property
    def is_significant(self) -> bool:
        """More than two standard errors, in either direction."""
        return self.plays > 1 and abs(self.difference) > 2 * self.standard_error


def paired(before: dict[str, Any], after: dict[str, Any], key: str = "reward") -> Paired | None:
    """`before` and `after`: validation lines of one task in metrics.jsonl; None if they share no seed."""
    first, last = (_by_seed(line, key) for line in (before, after))
    seeds = first.keys() & last.keys()
    if not seeds:
        return None
    gaps = [last[seed] - first[seed] for seed in seeds]
    error = statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.inf
    mean_before, mean_after = (statistics.fmean(scores[seed] for seed in seeds) for scores in (first, last))
    return Paired(len(seeds), mean_before, mean_after, error)


def _by_seed(line: dict[str, Any], key: str) -> dict[int, float]:
    each = line.get("each") or {}
    return dict(zip(each.get("seed", ()), map(float, each.get(key, ()))))
