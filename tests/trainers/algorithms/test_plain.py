"""Every estimator, loss, correction and KL against formulas written out token by token, in float64."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_hpc.config.algorithms import Part, entries
from rollart_hpc.trainers.algorithms.losses import TokenLoss
from rollart_hpc.trainers.algorithms.plays import Play, per_token
from rollart_hpc.trainers.algorithms.tokens import Tokens
from tests.trainers.algorithms.making import tokens, vector

CLOSE = 1e-6
STEP = 1e-6
Values = list[float]


# --- tokens ----------------------------------------------------------------------------------


class Token(NamedTuple):
    new: float
    behaviour: float
    old: float  # before the step's first update
    advantage: float
    reward: float
    sample: int
    turn: int


@st.composite
def batches(draw: st.DrawFn) -> list[Token]:
    """One to three samples of one to three turns; ratios between about 0.1 and 10."""
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    found: list[Token] = []
    turn = -1
    for sample in range(rng.integers(1, 4)):
        reward = float(rng.normal())
        for _ in range(rng.integers(1, 4)):
            turn += 1
            for _ in range(rng.integers(1, 4)):
                new = -float(rng.uniform(0.05, 4))
                near = [min(-0.01, new + float(rng.normal(0, 0.8))) for _ in range(2)]
                found.append(Token(new, *near, float(rng.normal()), reward, sample, turn))
    return found


def made(batch: Sequence[Token], new: Sequence[float] | torch.Tensor, *, is_decoupled: bool) -> Tokens:
    """With stored log-probs, as in a step of several updates."""
    found = tokens(
        new,
        [t.behaviour for t in batch],
        [t.advantage for t in batch],
        samples=[t.sample for t in batch],
        turns=[t.turn for t in batch],
        rewards=[t.reward for t in batch],
        is_decoupled=is_decoupled,
    )
    return Tokens(**{**vars(found), "stored": vector([t.old for t in batch])})


def clipped(ratio: float, advantage: float, low: float, high: float, dual: float = math.inf) -> float:
    loss = -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    return min(loss, -dual * advantage) if advantage < 0 else loss


class Seen(NamedTuple):
    """A token with what its loss may look at. Ratios are to the anchor."""

    token: Token
    new: float
    anchor: float
    of_sample: Values  # log-ratios of its sample
    of_turn: Values

    @property
    def ratio(self) -> float:
        return math.exp(self.new - self.anchor)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def cispo(s: Seen) -> tuple[float, float]:
    return -min(s.ratio, 5.0) * s.token.advantage * s.new, -min(s.ratio, 5.0) * s.token.advantage


def topr(over: Callable[[Seen], float]) -> Callable[[Seen], tuple[float, float]]:
    def loss(s: Seen) -> tuple[float, float]:
        weight = 1.0 if s.token.reward > 0 else min(1.0, math.exp(over(s)))
        return -weight * s.token.advantage * s.new, -weight * s.token.advantage

    return loss


def dppo(s: Seen) -> tuple[float, float]:
    moved = math.exp(s.new) - math.exp(s.anchor)
    is_far = moved > 0.2 if s.token.advantage > 0 else moved < -0.2
    weight = 0.0 if is_far else min(s.ratio, 20.0)
    return -weight * s.token.advantage * s.new, -weight * s.token.advantage


def gspo(s: Seen) -> tuple[float, float]:
    ratio = math.exp(statistics.fmean(s.of_sample))
    loss = clipped(ratio, s.token.advantage, 3e-4, 4e-4)
    is_free = ratio <= 1 + 4e-4 if s.token.advantage > 0 else ratio >= 1 - 3e-4
    return loss, -ratio * s.token.advantage if is_free else 0.0


def sapo(s: Seen) -> float:
    tau = 1.0 if s.token.advantage > 0 else 1.05
    return -s.token.advantage * 4 / tau * sigmoid(tau * (s.ratio - 1))


# A loss of a token that is a function of its own log-prob: its gradient is that of finite differences.
SMOOTH: dict[tuple[str, str], Callable[[Seen], float]] = {
    ("ppo", ""): lambda s: clipped(s.ratio, s.token.advantage, 0.2, 0.2, 3.0),
    ("reinforce", ""): lambda s: -s.token.advantage * s.new,
    ("kimi", ""): lambda s: -s.token.advantage * s.new + 0.05 * (s.new - s.anchor) ** 2,
    ("raft_pp", ""): lambda s: clipped(s.ratio, max(0.0, s.token.reward), 0.2, 0.2),
    ("sapo", ""): sapo,
}
# Losses with a weight that carries no gradient: loss and gradient.
WEIGHTED: dict[tuple[str, str], Callable[[Seen], tuple[float, float]]] = {
    ("cispo", ""): cispo,
    ("topr", "token"): topr(lambda s: s.new - s.anchor),
    ("topr", "turn"): topr(lambda s: statistics.fmean(s.of_turn)),
    ("topr", "sample"): topr(lambda s: sum(s.of_sample)),
    ("dppo", ""): dppo,
    ("gspo", ""): gspo,
}


def seen(batch: list[Token], at: int, new: float, *, is_decoupled: bool) -> Seen:
    """Token `at` with another log-prob than it has."""

    def anchor(t: Token) -> float:
        return t.old if is_decoupled else t.behaviour

    t = batch[at]
    logs = [(new if i == at else o.new) - anchor(o) for i, o in enumerate(batch)]
    return Seen(
        t,
        new,
        anchor(t),
        [x for x, o in zip(logs, batch) if o.sample == t.sample],
        [x for x, o in zip(logs, batch) if o.turn == t.turn],
    )


def found_by(name: str, ratio: str, batch: list[Token], *, is_decoupled: bool) -> tuple[Values, Values]:
    """Losses of tokens, and the gradients of their sum."""
    moving = vector([t.new for t in batch]).requires_grad_()
    params = {"ratio": ratio} if ratio else {}
    found = entries(Part.LOSS)[name].function(made(batch, moving, is_decoupled=is_decoupled), **params)
    loss = found.loss if isinstance(found, TokenLoss) else found
    loss.sum().backward()
    assert moving.grad is not None
    return loss.tolist(), moving.grad.tolist()


@pytest.mark.parametrize("is_decoupled", [False, True])
@pytest.mark.parametrize(("name", "ratio"), SMOOTH)
@given(batches())
@settings(max_examples=25, deadline=None)
def test_losses_and_their_finite_differences(name: str, ratio: str, is_decoupled: bool, batch: list[Token]) -> None:
    plain = SMOOTH[name, ratio]
    losses, gradients = found_by(name, ratio, batch, is_decoupled=is_decoupled)
    for at, token in enumerate(batch):
        assert losses[at] == pytest.approx(plain(seen(batch, at, token.new, is_decoupled=is_decoupled)), abs=CLOSE)
        around = [plain(seen(batch, at, token.new + d, is_decoupled=is_decoupled)) for d in (-STEP, STEP)]
        edges = (0.8, 1.2, 3.0)
        if min(abs(seen(batch, at, token.new, is_decoupled=is_decoupled).ratio - edge) for edge in edges) > 1e-4:
            assert gradients[at] == pytest.approx((around[1] - around[0]) / (2 * STEP), rel=1e-5, abs=CLOSE)


@pytest.mark.parametrize("is_decoupled", [False, True])
@pytest.mark.parametrize(("name", "ratio"), WEIGHTED)
@given(batches())
@settings(max_examples=25, deadline=None)
def test_losses_with_weights_without_a_gradient(name: str, ratio: str, is_decoupled: bool, batch: list[Token]) -> None:
    losses, gradients = found_by(name, ratio, batch, is_decoupled=is_decoupled)
    plain = [WEIGHTED[name, ratio](seen(batch, at, t.new, is_decoupled=is_decoupled)) for at, t in enumerate(batch)]
    assert losses == pytest.approx([loss for loss, _ in plain], abs=CLOSE)
    assert gradients == pytest.approx([gradient for _, gradient in plain], abs=CLOSE)


def test_every_loss_has_its_formula() -> None:
    assert {name for name, _ in (*SMOOTH, *WEIGHTED)} == set(entries(Part.LOSS))


# --- corrections -----------------------------------------------------------------------------


def within(weight: float, low: float, high: float, how: str = "truncate") -> float:
    if how == "truncate":
        return min(max(weight, low), high)
    return weight if low <= weight <= high else 0.0


class Weights(NamedTuple):
    own: float
    of_sample: Values
    of_turn: Values
    advantages: Values  # of its sample


def mean_of(values: Values) -> float:
    return math.exp(statistics.fmean(map(math.log, values)))


CORRECTIONS: dict[str, Callable[[Weights], float]] = {
    "none": lambda w: 1.0,
    "token": lambda w: within(w.own, 0, 2),
    "sequence": lambda w: within(math.prod(w.of_sample), 0, 2),
    "geometric": lambda w: within(mean_of(w.of_sample), 0, 1.2),
    "turn": lambda w: within(mean_of(w.of_turn), 0, 1.2),
    "geometric_mask": lambda w: float(0.99 <= mean_of(w.of_sample) <= 1.01),
    "turn_mask": lambda w: float(0.8 <= mean_of(w.of_turn) <= 1.2),
    "veto": lambda w: float(all(1e-4 <= one <= 1e4 for one in w.of_sample)),
    "drift_mask": lambda w: float(
        not (statistics.fmean(w.advantages) < 0 and -statistics.fmean(map(math.log, w.of_sample)) > 0.5)
    ),
}
MASKED: dict[str, Callable[[Weights], float]] = {
    "token": lambda w: within(w.own, 0.6, 1.6, "mask"),
    "sequence": lambda w: within(math.prod(w.of_sample), 0.6, 1.6, "mask"),
    "geometric": lambda w: within(mean_of(w.of_sample), 0.6, 1.6, "mask"),
    "turn": lambda w: within(mean_of(w.of_turn), 0.6, 1.6, "mask"),
}


@pytest.mark.parametrize(("name", "is_mask"), [*((n, False) for n in CORRECTIONS), *((n, True) for n in MASKED)])
@given(batches())
@settings(max_examples=40, deadline=None)
def test_corrections(name: str, is_mask: bool, batch: list[Token]) -> None:
    weights = [math.exp(t.old - t.behaviour) for t in batch]
    params: dict[str, Any] = {"low": 0.6, "high": 1.6, "how": "mask"} if is_mask else {}
    got = entries(Part.CORRECTION)[name].function(made(batch, [t.new for t in batch], is_decoupled=True), **params)
    for at, token in enumerate(batch):
        told = Weights(
            weights[at],
            [w for w, t in zip(weights, batch) if t.sample == token.sample],
            [w for w, t in zip(weights, batch) if t.turn == token.turn],
            [t.advantage for t in batch if t.sample == token.sample],
        )
        assert got[at].item() == pytest.approx((MASKED if is_mask else CORRECTIONS)[name](told), abs=CLOSE)


def test_every_correction_has_its_formula() -> None:
    assert set(CORRECTIONS) == set(entries(Part.CORRECTION))


# --- KL --------------------------------------------------------------------------------------

KL: dict[str, Callable[[float], float]] = {
    "k1": lambda d: d,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: math.exp(-d) - 1 + d,
}


@pytest.mark.parametrize("name", entries(Part.KL))
@given(st.floats(-2.4, 15))
def test_kl_and_its_finite_differences(name: str, gap: float) -> None:
    moving = vector([gap]).requires_grad_()
    found = entries(Part.KL)[name].function(moving)
    found.sum().backward()
    assert found.item() == pytest.approx(min(10.0, KL[name](gap)) if name == "k3" else KL[name](gap), abs=CLOSE)
    assert moving.grad is not None
    slope = (KL[name](gap + STEP) - KL[name](gap - STEP)) / (2 * STEP)
    if name != "k3" or KL[name](gap) < 9.99:
        assert moving.grad.item() == pytest.approx(slope, rel=1e-5, abs=1e-5)


# --- estimators ------------------------------------------------------------------------------

Group = list[Play]


@st.composite
def groups_of_plays(draw: st.DrawFn) -> list[Group]:
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    return [[_a_play(rng) for _ in range(rng.integers(1, 5))] for _ in range(rng.integers(1, 4))]


def _a_play(rng: np.random.Generator) -> Play:
    counts = rng.integers(1, 4, rng.integers(1, 4))
    turn_rewards = tuple(rng.normal(size=len(counts)).tolist()) if rng.random() < 0.5 else ()
    return Play(
        reward=float(rng.choice([0.0, 1.0, rng.normal()])),
        turn_of=np.repeat(np.arange(len(counts)), counts),
        states=tuple(rng.integers(0, 2, len(counts)).tolist()),
        turn_rewards=turn_rewards,
        values=rng.normal(size=counts.sum()),
    )


def deviation(values: Values) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def rewards_of_turns(play: Play) -> Values:
    given = list(play.turn_rewards) or [0.0] * play.num_turns
    return [*given[:-1], given[-1] + play.reward - sum(given)]


def token_rewards(play: Play) -> Values:
    turns = play.turn_of.tolist()
    ends = [i + 1 == len(turns) or turns[i + 1] != turns[i] for i in range(len(turns))]
    return [rewards_of_turns(play)[turn] if end else 0.0 for turn, end in zip(turns, ends)]


def returns(values: Values, gamma: float) -> Values:
    return [sum(gamma ** (k - i) * values[k] for k in range(i, len(values))) for i in range(len(values))]


def spread(play: Play, by_turn: Values) -> Values:
    return [by_turn[turn] for turn in play.turn_of.tolist()]


def scaled(values: Values) -> Values:
    mean = statistics.fmean(values)
    return [(v - mean) / (deviation(values) + 1e-6) if len(values) > 1 else 0.0 for v in values]


def white(nested: list[list[Values]]) -> list[list[Values]]:
    flat = [v for group in nested for play in group for v in play]
    if len(flat) < 2 or max(flat) - min(flat) <= 1e-6:
        return [[[0.0] * len(play) for play in group] for group in nested]
    mean, scale = statistics.fmean(flat), math.sqrt(statistics.variance(flat) + 1e-8)
    return [[[(v - mean) / scale for v in play] for play in group] for group in nested]


def per_group(formula: Callable[[Values, float], float]) -> Callable[[list[Group]], list[list[Values]]]:
    """Of the group's rewards and a play's own."""

    def estimate(groups: list[Group]) -> list[list[Values]]:
        rewards = [[play.reward for play in group] for group in groups]
        return [[[formula(r, p.reward)] * p.num_tokens for p in group] for group, r in zip(groups, rewards)]

    return estimate


def lite(groups: list[Group]) -> list[list[Values]]:
    std = deviation([play.reward for group in groups for play in group])
    return per_group(lambda r, own: (own - statistics.fmean(r)) / (std + 1e-6))(groups)


def batch_mean(groups: list[Group]) -> list[list[Values]]:
    mean = statistics.fmean([play.reward for group in groups for play in group])
    return per_group(lambda r, own: own - mean)(groups)


def gae(groups: list[Group]) -> list[list[Values]]:
    def of(play: Play) -> Values:
        assert play.values is not None
        values, found, later, value = play.values.tolist(), [], 0.0, 0.0
        for reward, now in zip(reversed(token_rewards(play)), reversed(values)):
            later = reward + value - now + later
            found.insert(0, later)
            value = now
        return found

    return white([[of(play) for play in group] for group in groups])


def gigpo(groups: list[Group]) -> list[list[Values]]:
    found = []
    for group in groups:
        whole = scaled([play.reward for play in group])
        steps = [returns(rewards_of_turns(play), 0.95) for play in group]
        places: dict[int, list[tuple[int, int]]] = {}
        for i, play in enumerate(group):
            for turn, state in enumerate(play.states):
                places.setdefault(state, []).append((i, turn))
        of_turn = {
            place: value
            for same in places.values()
            for place, value in zip(same, scaled([steps[i][turn] for i, turn in same]))
        }
        found.append([[whole[i] + of_turn[i, turn] for turn in play.turn_of.tolist()] for i, play in enumerate(group)])
    return found


ESTIMATORS: dict[str, Callable[[list[Group]], list[list[Values]]]] = {
    "grpo": per_group(lambda r, own: (own - statistics.fmean(r)) / (deviation(r) + 1e-6) if len(r) > 1 else 0.0),
    "dr_grpo": per_group(lambda r, own: own - statistics.fmean(r)),
    "rloo": per_group(lambda r, own: own - (sum(r) - own) / (len(r) - 1) if len(r) > 1 else 0.0),
    "max_rl": per_group(lambda r, own: own / statistics.fmean(r) - 1 if statistics.fmean(r) > 1e-6 else 0.0),
    "raw": per_group(lambda r, own: own),
    "reinforce": batch_mean,
    "lite_ppo": lite,
    "reinforce_pp": lambda groups: white([[returns(token_rewards(p), 1.0) for p in group] for group in groups]),
    "reinforce_pp_baseline": lambda groups: white(per_group(lambda r, own: own - statistics.fmean(r))(groups)),
    "turn_return": lambda groups: [[spread(p, returns(rewards_of_turns(p), 0.95)) for p in group] for group in groups],
    "gae": gae,
    "gigpo": gigpo,
}


@pytest.mark.parametrize("name", entries(Part.ESTIMATOR))
@given(groups_of_plays())
@settings(max_examples=40, deadline=None)
def test_estimators(name: str, groups: list[Group]) -> None:
    found = entries(Part.ESTIMATOR)[name].function(groups)
    for values, group, expected in zip(found, groups, ESTIMATORS[name](groups), strict=True):
        for value, play, plain in zip(values, group, expected, strict=True):
            assert per_token(value, play.num_tokens).tolist() == pytest.approx(plain, rel=CLOSE, abs=CLOSE)
