"""What happens to rewards and plays before advantages are computed, and to advantages after. Owns every shaping.

Stage rewards: groups of plays -> a reward for each play. Stage plays: -> True for plays that are not trained on; they
still count in baselines and in the step's total. Stage advantages: an array per play and token -> the same. Shapings of
a stage are applied in the order of the run file. Metrics and the group filter see rewards as the task gave them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollart_hpc.config.algorithms import Part, Scope, Stage, entry
from rollart_hpc.config.fields import key
from rollart_hpc.trainers.algorithms.estimators import STD_FLOOR, Advantages, Groups, whitened
from rollart_hpc.trainers.algorithms.plays import Array, Play, rewards_of

Rewards = list[list[float]]


@dataclass(frozen=True)
class OverlongParams:
    limit: int = key(0, "length in tokens at which the whole penalty is due; 0 = max_tokens of the task", low=0)
    buffer: int = key(128, "tokens before the limit over which the penalty grows", low=1)
    factor: float = key(1.0, "the whole penalty", low=0)
    counts: str = key(
        "all",
        "which tokens make the length",
        choices={"all": "all of the trajectory, as max_tokens does", "sampled": "sampled tokens only"},
    )


@entry(
    Part.SHAPING, "overlong", "a penalty that grows over the last tokens before a limit, and no further",
    paper="arXiv 2503.14476", params=OverlongParams,
)  # fmt: skip
def overlong(groups: Groups, *, limit: int = 0, buffer: int = 128, factor: float = 1.0, counts: str = "all") -> Rewards:
    def penalty(play: Play) -> float:
        length = play.num_tokens + (play.num_observed if counts == "all" else 0)
        most = limit or play.token_limit
        return min(1.0, max(0.0, (length - (most - buffer)) / buffer)) * factor if most else 0.0

    return [[play.reward - penalty(play) for play in group] for group in groups]


@dataclass(frozen=True)
class LengthParams:
    weight: float = key(0.1, "share of the group's mean reward that the longest play loses", low=0)


@entry(
    Part.SHAPING, "length", "plays lose reward in proportion to their length relative to the longest of the group",
    paper="as in prime-rl", params=LengthParams,
)  # fmt: skip
def length(groups: Groups, *, weight: float = 0.1) -> Rewards:
    found = []
    for group in groups:
        longest = max((play.num_tokens for play in group), default=0) or 1
        cost = weight * float(rewards_of(group).mean()) / longest if group else 0.0
        found.append([play.reward - cost * play.num_tokens for play in group])
    return found


@dataclass(frozen=True)
class ClipParams:
    low: float = key(-1.0, "smallest reward")
    high: float = key(1.0, "largest reward")


@entry(Part.SHAPING, "clip", "rewards within bounds", params=ClipParams)
def clip(groups: Groups, *, low: float = -1.0, high: float = 1.0) -> Rewards:
    return [[min(high, max(low, play.reward)) for play in group] for group in groups]


@dataclass(frozen=True)
class NormaliseParams:
    mean: bool = key(True, "subtract the mean")
    std: bool = key(True, "divide by the standard deviation")


@entry(Part.SHAPING, "normalise_group", "rewards in units of their group", params=NormaliseParams)
def normalise_group(groups: Groups, *, mean: bool = True, std: bool = True) -> Rewards:
    return [_normalised(rewards_of(group), rewards_of(group), mean, std).tolist() for group in groups]


@entry(Part.SHAPING, "normalise_batch", "rewards in units of the batch", params=NormaliseParams, scope=Scope.BATCH)
def normalise_batch(groups: Groups, *, mean: bool = True, std: bool = True) -> Rewards:
    everything = np.concatenate([rewards_of(group) for group in groups]) if groups else np.zeros(1)
    return [_normalised(rewards_of(group), everything, mean, std).tolist() for group in groups]


def _normalised(rewards: Array, among: Array, mean: bool, std: bool) -> Array:
    found = rewards - among.mean() if mean else rewards
    spread = float(among.std(ddof=1)) if len(among) > 1 else 0.0
    return found / (spread + STD_FLOOR) if std and spread > STD_FLOOR else found


@entry(
    Part.SHAPING, "leave_out_cut", "do not train on plays that max_tokens or max_turns ended", stage=Stage.PLAYS,
    paper="arXiv 2503.14476",
)  # fmt: skip
def leave_out_cut(groups: Groups) -> list[list[bool]]:
    return [[play.is_cut for play in group] for group in groups]


@entry(
    Part.SHAPING, "whiten", "advantages with mean 0 and variance 1 over all tokens of the batch",
    stage=Stage.ADVANTAGES, scope=Scope.BATCH,
)  # fmt: skip
def whiten(advantages: Sequence[Sequence[Array]]) -> Advantages:
    return whitened(advantages)
