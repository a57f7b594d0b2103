"""Advantages: how much better a play, or a token of it, was than expected. Owns every estimator; knows no loss.

An estimator gets groups of plays and returns, for each play, one advantage or one per token. With scope group it is
called with whatever groups have arrived; with scope batch once, with all groups of the step. A play counts once in
every mean, however long it is, unless the entry says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from rollart_hpc.config.algorithms import Part, Scope, entry
from rollart_hpc.config.fields import key
from rollart_hpc.trainers.algorithms.plays import Advantage, Array, Group, Play, rewards_of

STD_FLOOR = 1e-6
_VARIANCE_FLOOR = 1e-8

Groups = Sequence[Group]
Advantages = list[list[Advantage]]


@dataclass(frozen=True)
class GrpoParams:
    normalise_std: bool = key(True, "divide by the standard deviation of the group's rewards")


@entry(
    Part.ESTIMATOR, "grpo", "reward minus the mean of its group, over the group's standard deviation (n - 1)",
    paper="arXiv 2402.03300", params=GrpoParams,
)  # fmt: skip
def grpo(groups: Groups, *, normalise_std: bool = True) -> Advantages:
    return [_listed(_scaled(rewards_of(group), normalise_std)) for group in groups]


@entry(Part.ESTIMATOR, "dr_grpo", "reward minus the mean of its group", paper="arXiv 2503.20783")
def dr_grpo(groups: Groups) -> Advantages:
    return [_listed(_centred(rewards_of(group))) for group in groups]


@entry(
    Part.ESTIMATOR, "rloo", "reward minus the mean of the other plays of its group; 0 if there is no other",
    paper="arXiv 2402.14740",
)  # fmt: skip
def rloo(groups: Groups) -> Advantages:
    return [_listed(_centred(rewards_of(group)) * (len(group) / max(1, len(group) - 1))) for group in groups]


@entry(
    Part.ESTIMATOR, "max_rl", "reward minus the mean of its group, over that mean; 0 if the mean is not positive",
    paper="as in prime-rl and SkyRL",
)  # fmt: skip
def max_rl(groups: Groups) -> Advantages:
    found = []
    for group in groups:
        mean = float(rewards_of(group).mean())
        found.append(_listed(_centred(rewards_of(group)) / mean if mean > STD_FLOOR else np.zeros(len(group))))
    return found


@entry(Part.ESTIMATOR, "raw", "the reward itself, without a baseline", paper="Williams 1992")
def raw(groups: Groups) -> Advantages:
    return [_listed(rewards_of(group)) for group in groups]


@entry(
    Part.ESTIMATOR, "reinforce", "reward minus the mean of the batch", paper="Williams 1992", scope=Scope.BATCH
)  # fmt: skip
def reinforce(groups: Groups) -> Advantages:
    mean = _all_rewards(groups).mean()
    return [_listed(rewards_of(group) - mean) for group in groups]


@dataclass(frozen=True)
class ReturnParams:
    gamma: float = key(1.0, "discount per token, counted from the last one", low=0, high=1)


@entry(
    Part.ESTIMATOR, "reinforce_pp",
    "return of every token, whitened over all sampled tokens of the batch; long answers weigh more",
    paper="arXiv 2501.03262", params=ReturnParams, scope=Scope.BATCH,
)  # fmt: skip
def reinforce_pp(groups: Groups, *, gamma: float = 1.0) -> Advantages:
    return whitened([[to_go(play.by_token, gamma) for play in group] for group in groups])


@entry(
    Part.ESTIMATOR, "reinforce_pp_baseline",
    "reward minus the mean of its group, whitened over all sampled tokens of the batch",
    paper="arXiv 2501.03262", scope=Scope.BATCH,
)  # fmt: skip
def reinforce_pp_baseline(groups: Groups) -> Advantages:
    centred = [_centred(rewards_of(group)) for group in groups]
    return whitened(
        [[np.full(p.num_tokens, a) for p, a in zip(group, values)] for group, values in zip(groups, centred)]
    )


@entry(
    Part.ESTIMATOR, "lite_ppo", "reward minus the mean of its group, over the standard deviation of the batch (n - 1)",
    paper="arXiv 2508.08221", scope=Scope.BATCH,
)  # fmt: skip
def lite_ppo(groups: Groups) -> Advantages:
    std = _std(_all_rewards(groups))
    return [_listed(_centred(rewards_of(group)) / (std + STD_FLOOR)) for group in groups]


@dataclass(frozen=True)
class TurnReturnParams:
    gamma: float = key(0.95, "discount per turn, counted from the last one", low=0, high=1)
    baseline: str = key(
        "none",
        "what is subtracted from the reward first",
        choices={"none": "nothing: a play with reward 0 teaches nothing", "group": "the mean of its group"},
    )


@entry(
    Part.ESTIMATOR, "turn_return", "return of every turn, discounted per turn; the same within a turn",
    paper="arXiv 2512.24873", params=TurnReturnParams,
)  # fmt: skip
def turn_return(groups: Groups, *, gamma: float = 0.95, baseline: str = "none") -> Advantages:
    found: Advantages = []
    for group in groups:
        rewards = rewards_of(group) if baseline == "none" else _centred(rewards_of(group))
        plays = [replace(play, reward=float(reward)) for play, reward in zip(group, rewards)]
        found.append([to_go(play.by_turn, gamma)[play.turn_of] for play in plays])
    return found


@dataclass(frozen=True)
class GigpoParams:
    gamma: float = key(0.95, "discount of rewards per turn", low=0, high=1)
    step_weight: float = key(1.0, "weight of the part that compares turns", low=0)
    normalise_std: bool = key(True, "divide both parts by standard deviations, as grpo does")


@entry(
    Part.ESTIMATOR, "gigpo",
    "grpo's advantage of the play, plus that of each turn among the group's turns that saw the same observation",
    paper="arXiv 2505.10978", params=GigpoParams,
)  # fmt: skip
def gigpo(groups: Groups, *, gamma: float = 0.95, step_weight: float = 1.0, normalise_std: bool = True) -> Advantages:
    found: Advantages = []
    for group in groups:
        plays = _scaled(rewards_of(group), normalise_std)
        turns = _among_equals(group, gamma, normalise_std)
        found.append([a + step_weight * t[p.turn_of] for p, a, t in zip(group, plays, turns)])
    return found


@dataclass(frozen=True)
class GaeParams:
    gamma: float = key(1.0, "discount per token", low=0, high=1)
    lam: float = key(1.0, "weight of later errors of the critic in advantages; 1 = returns minus values", low=0, high=1)
    lam_returns: float = key(1.0, "the same in what the critic learns; 1 = plain returns", low=0, high=1)


@entry(
    Part.ESTIMATOR, "gae", "return of every token minus what a critic expected, whitened over all tokens of the batch",
    paper="arXiv 1506.02438, 1707.06347", params=GaeParams, scope=Scope.BATCH, needs_values=True,
)  # fmt: skip
def gae(groups: Groups, *, gamma: float = 1.0, lam: float = 1.0, lam_returns: float = 1.0) -> Advantages:
    return whitened([[surprises(play, gamma, lam) for play in group] for group in groups])


def surprises(play: Play, gamma: float, lam: float) -> Array:
    """GAE over sampled tokens only: observations have no value, and no credit decays over them."""
    values = np.zeros(play.num_tokens) if play.values is None else play.values
    errors = play.by_token + gamma * np.append(values[1:], 0.0)[: len(values)] - values
    return to_go(errors, gamma * lam)


def returns_of(play: Play, *, gamma: float = 1.0, lam_returns: float = 1.0, **_: object) -> Array:
    """What a critic shall learn of a play."""
    values = np.zeros(play.num_tokens) if play.values is None else play.values
    return surprises(play, gamma, lam_returns) + values


def _among_equals(group: Group, gamma: float, normalise_std: bool) -> list[Array]:
    """Each turn's return relative to those of the turns with the same state; 0 for a state that occurs once."""
    returns = [to_go(play.by_turn, gamma) for play in group]
    found = [np.zeros(play.num_turns) for play in group]
    places: dict[int, list[tuple[int, int]]] = {}
    for i, play in enumerate(group):
        for turn, state in enumerate(play.states[: play.num_turns]):
            places.setdefault(state, []).append((i, turn))
    for equals in places.values():
        values = _scaled(np.array([returns[i][turn] for i, turn in equals]), normalise_std)
        for (i, turn), value in zip(equals, values):
            found[i][turn] = value
    return found


# --- shared ----------------------------------------------------------------------------------


def whitened(advantages: Sequence[Sequence[Array]]) -> Advantages:
    """Mean 0 and variance 1 over all tokens; 0 if they do not differ."""
    parts = [values for group in advantages for values in group]
    tokens = np.concatenate(parts) if parts else np.zeros(0)
    if len(tokens) < 2 or np.ptp(tokens) <= STD_FLOOR:
        return [[np.zeros(len(values)) for values in group] for group in advantages]
    mean, scale = tokens.mean(), 1.0 / np.sqrt(tokens.var(ddof=1) + _VARIANCE_FLOOR)
    return [[(values - mean) * scale for values in group] for group in advantages]


def _scaled(rewards: Array, normalise_std: bool) -> Array:
    centred = _centred(rewards)
    return centred / (_std(rewards) + STD_FLOOR) if normalise_std and len(rewards) > 1 else centred


def _centred(rewards: Array) -> Array:
    return rewards - rewards.mean() if len(rewards) else rewards


def _std(rewards: Array) -> float:
    return float(rewards.std(ddof=1)) if len(rewards) > 1 else 0.0


def _all_rewards(groups: Groups) -> Array:
    return np.concatenate([rewards_of(group) for group in groups]) if groups else np.zeros(1)


def to_go(values: Array, gamma: float) -> Array:
    """Each value plus gamma times what follows it."""
    if gamma == 1.0:
        return values[::-1].cumsum()[::-1]
    backwards = accumulate(values[::-1].tolist(), lambda later, value: value + gamma * later)
    return np.fromiter(backwards, np.float64, len(values))[::-1]


def _listed(values: Array) -> list[Advantage]:
    found: list[Advantage] = list(values.tolist())
    return found
