"""What repeated plays of held-out seeds say about a policy: pass@k, mean and interval. Reads no file.

Seeds are the units: plays of one seed are not independent of each other.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_Z = 1.96  # of a normal distribution: 95%


@dataclass(frozen=True)
class Estimate:
    """Of one task."""

    seeds: int
    plays: int
    failed: int  # plays without a score
    reward: float
    reward_error: float | None  # standard error over seeds; None: there is only one
    success: float
    low: float  # 95% interval of success
    high: float
    pass_at: dict[int, float]


def estimate(line: Mapping[str, Any]) -> Estimate | None:
    """`line`: a validation of one task in metrics.jsonl; None if no play has a score."""
    each = line.get("each") or {}
    rewards: defaultdict[int, list[float]] = defaultdict(list)
    successes: defaultdict[int, list[bool]] = defaultdict(list)
    for seed, reward, success in zip(each.get("seed", ()), each.get("reward", ()), each.get("success", ())):
        rewards[seed].append(float(reward))
        successes[seed].append(bool(success))
    if not rewards:
        return None
    means = [statistics.fmean(values) for values in rewards.values()]
    success = statistics.fmean(statistics.fmean(values) for values in successes.values())
    low, high = wilson(success, len(means))
    return Estimate(
        seeds=len(means),
        plays=sum(map(len, rewards.values())),
        failed=int(line.get("failed", 0)),
        reward=statistics.fmean(means),
        reward_error=statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else None,
        success=success,
        low=low,
        high=high,
        pass_at=_all_pass_at(list(successes.values())),
    )


def pass_at(k: int, plays: int, successes: int) -> float:
    """The chance that one of k plays succeeds, drawn without replacement from those of a seed."""
    if plays < k:
        raise ValueError(f"pass@{k} needs {k} plays, not {plays}")
    return 1.0 - math.comb(plays - successes, k) / math.comb(plays, k)


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95% interval of a share among `count` units. It has a width even if all or none succeeded."""
    middle = share + _Z**2 / (2 * count)
    spread = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    whole = 1 + _Z**2 / count
    return max(0.0, (middle - spread) / whole), min(1.0, (middle + spread) / whole)


def _all_pass_at(played: Sequence[Sequence[bool]]) -> dict[int, float]:
    """For 1, 2, 4, ... and for as many plays as every seed has."""
    most = min(map(len, played))
    sizes = sorted({*(1 << i for i in range(most.bit_length()) if 1 << i <= most), most})
    return {k: statistics.fmean(pass_at(k, len(each), sum(each)) for each in played) for k in sizes}
