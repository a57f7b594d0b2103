from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_hpc.config.algorithms import Part, entries
from rollart_hpc.trainers.algorithms import losses
from rollart_hpc.trainers.algorithms.losses import TokenLoss
from tests.trainers.algorithms.making import tokens, vector

ALL = entries(Part.LOSS)
logprob = st.floats(-8, 0, allow_subnormal=False)
advantage = st.floats(-3, 3).filter(lambda a: abs(a) > 1e-3)


def gradient(
    name: str, new: float, behaviour: float, adv: float, reward: float | None = None, **params: object
) -> float:
    """d loss / d new of one token."""
    moving = vector([new]).requires_grad_()
    given_tokens = tokens(moving, [behaviour], [adv], rewards=[adv if reward is None else reward])
    ALL[name].function(given_tokens, **params).loss.sum().backward()
    assert moving.grad is not None
    return moving.grad.item()


def sig(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def expected_factor(name: str, rho: float, adv: float, p_new: float, p_old: float) -> float:
    """The table of gradient multipliers: d loss / d new = -g * advantage."""
    up = adv > 0
    match name:
        case "reinforce":
            return 1.0
        case "ppo":
            return rho if (rho <= 1.2 if up else 0.8 <= rho <= 3) else 0.0
        case "cispo":
            return min(rho, 5.0)
        case "topr":
            return 1.0 if up else min(rho, 1.0)
        case "gspo":
            return rho if (rho <= 1 + 4e-4 if up else rho >= 1 - 3e-4) else 0.0
        case "sapo":
            s = sig((1.0 if up else 1.05) * (rho - 1))
            return 4 * s * (1 - s) * rho
        case "dppo":
            return 0.0 if (p_new - p_old > 0.2 if up else p_new - p_old < -0.2) else min(rho, 20.0)
        case "raft_pp":
            return (rho if rho <= 1.2 else 0.0) if up else 0.0
    raise AssertionError(name)


@pytest.mark.parametrize("name", [name for name in ALL if name != "kimi"])
@given(logprob, logprob, advantage)
@settings(max_examples=60)
def test_gradients_have_the_factors_of_the_papers(name: str, new: float, behaviour: float, adv: float) -> None:
    factor = expected_factor(name, math.exp(new - behaviour), adv, math.exp(new), math.exp(behaviour))
    assert gradient(name, new, behaviour, adv) == pytest.approx(-factor * adv, rel=1e-9, abs=1e-12)


@given(logprob, logprob, advantage)
def test_kimi_pulls_to_the_anchor(new: float, behaviour: float, adv: float) -> None:
    assert gradient("kimi", new, behaviour, adv, tau=0.3) == pytest.approx(-adv + 0.3 * (new - behaviour))


@pytest.mark.parametrize("name", [n for n in ALL if n not in ("cispo", "topr", "gspo", "dppo")])  # these stop gradients
@given(logprob, logprob, advantage)
@settings(max_examples=25)
def test_gradients_are_those_of_finite_differences(name: str, new: float, behaviour: float, adv: float) -> None:
    step = 1e-6
    rho = math.exp(new - behaviour)
    if min(abs(rho - edge) for edge in (0.8, 1.2, 3.0)) < 1e-3:
        return
    loss = [ALL[name].function(tokens([new + d], [behaviour], [adv])).loss.item() for d in (-step, step)]
    assert gradient(name, new, behaviour, adv) == pytest.approx((loss[1] - loss[0]) / (2 * step), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", ALL)
@given(st.floats(-1e4, 0), st.floats(-1e4, 0), st.floats(-1e3, 1e3), st.booleans())
@settings(max_examples=40)
def test_no_token_can_spoil_a_step(name: str, new: float, behaviour: float, adv: float, is_decoupled: bool) -> None:
    moving = torch.tensor([new, -1.0], dtype=torch.float32, requires_grad=True)
    given_tokens = tokens(moving, [behaviour, -1.0], [adv, 1.0], is_decoupled=is_decoupled)
    loss = ALL[name].function(given_tokens).loss
    loss.sum().backward()
    assert loss.isfinite().all()
    assert moving.grad is not None
    assert moving.grad.isfinite().all()


# --- identities ------------------------------------------------------------------------------

NEW, OLD, ADV = [-1.0, -0.2, -3.0, -0.7], [-1.2, -0.9, -1.0, -0.7], [1.0, -1.0, 2.0, -0.5]


def loss_of(name: str, samples: list[int] | None = None, **params: float) -> list[float]:
    found: TokenLoss = ALL[name].function(tokens(NEW, OLD, ADV, samples=samples), **params)
    return list(found.loss.tolist())


def test_gspo_of_single_tokens_is_ppo() -> None:
    clips = {"clip_low": 0.1, "clip_high": 0.3}
    assert loss_of("gspo", [0, 1, 2, 3], **clips) == pytest.approx(loss_of("ppo", dual_clip=0.0, **clips))


def test_gspo_takes_the_geometric_mean_of_a_sample() -> None:
    found = losses.gspo(tokens([-1.0, -2.0, -1.0], [-1.5, -2.1, -1.0], [1.0, 1.0, 1.0], samples=[0, 0, 1]), clip_high=9)
    assert found.loss.tolist() == pytest.approx([-math.exp(0.3), -math.exp(0.3), -1.0])


def test_cispo_with_weight_1_is_reinforce() -> None:
    assert loss_of("cispo", low=1.0, high=1.0) == pytest.approx(loss_of("reinforce"))


def test_a_far_dual_clip_is_none() -> None:
    assert loss_of("ppo", dual_clip=1e9) == loss_of("ppo", dual_clip=0.0)
    assert losses.ppo(tokens([0.0], [-2.0], [-1.0])).loss.item() == 3.0


def test_topr_goes_by_the_reward_and_may_take_the_whole_sample() -> None:
    given_tokens = tokens([-2.0, -2.0], [-1.0, -1.5], [1.0, 1.0], rewards=[0.0, 0.0])
    assert losses.topr(given_tokens).loss.tolist() == pytest.approx([2 * math.exp(-1), 2 * math.exp(-0.5)])
    by_turn = tokens([-2.0] * 3, [-1.0, -1.5, -2.5], [1.0] * 3, rewards=[0.0] * 3, turns=[0, 0, 1])
    assert losses.topr(by_turn, ratio="turn").loss.tolist() == pytest.approx([2 * math.exp(-0.75)] * 2 + [2.0])
    assert losses.topr(given_tokens, ratio="sample").loss.tolist() == pytest.approx([2 * math.exp(-1.5)] * 2)


def test_raft_forgets_failures_whatever_their_advantage() -> None:
    given_tokens = tokens([-1.0, -1.0], [-1.0, -1.0], [-0.5, 0.5], rewards=[1.0, 0.0])
    assert losses.raft_pp(given_tokens).loss.tolist() == [-1.0, 0.0]


def test_decoupled_takes_ratios_to_the_policy_before_the_update() -> None:
    assert losses.ppo(tokens(NEW, OLD, ADV, is_decoupled=True)).loss.tolist() == pytest.approx([-a for a in ADV])
