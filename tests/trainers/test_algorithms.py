from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.config.schema import AlgorithmConfig, TrainerConfig
from rollart_hpc.trainers import algorithms
from rollart_hpc.types import Sample, TokenRecord, TrainGroup

rewards = st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=1, max_size=16)
logprob = st.floats(-8, 0, allow_subnormal=False)


def group_of(number: int, values: list[float], samples_each: int = 1) -> TrainGroup:
    samples = [
        Sample(f"{number}.{i}", number, "task", TokenRecord.empty(), value)
        for i, value in enumerate(values)
        for _ in range(samples_each)
    ]
    return TrainGroup(number, "task", samples)


def loss_of(new: float, behaviour: float, advantage: float, **more: float) -> algorithms.TokenLoss:
    tensors = (torch.tensor([x], dtype=torch.float64) for x in (new, behaviour, advantage))
    options = {"clip_low": 0.2, "clip_high": 0.3} | more
    return algorithms.policy_loss(*tensors, **options)


# --- advantages ------------------------------------------------------------------------------


@given(rewards, st.booleans())
def test_advantages_of_a_group_add_up_to_zero(values: list[float], normalise_std: bool) -> None:
    advantages = algorithms.grpo_advantages(np.array(values), normalise_std)
    assert abs(advantages.sum()) < 1e-6
    assert all((a > b) == (x > y) or a == b for a, x in zip(advantages, values) for b, y in zip(advantages, values))


@given(st.floats(-100, 100, allow_subnormal=False), st.integers(1, 9))
def test_equal_rewards_teach_nothing(value: float, size: int) -> None:
    assert np.abs(algorithms.grpo_advantages(np.full(size, value), True)).max() < 1e-6


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=16).filter(lambda v: len(set(v)) > 1))
def test_normalised_advantages_have_unit_spread(values: list[int]) -> None:
    assert algorithms.grpo_advantages(np.array(values, np.float64), True).std(ddof=1) == pytest.approx(1.0, abs=1e-4)


@given(st.lists(rewards, min_size=1, max_size=4), st.integers(1, 3))
def test_a_trajectory_counts_once_however_many_samples_it_has(groups: list[list[float]], samples_each: int) -> None:
    single = [group_of(i, values) for i, values in enumerate(groups)]
    several = [group_of(i, values, samples_each) for i, values in enumerate(groups)]
    for estimator in AlgorithmConfig.__dataclass_fields__["estimator"].metadata["choices"]:
        for batch in (single, several):
            algorithms.assign_advantages(batch, AlgorithmConfig(estimator=estimator))
        for one, many in zip(single, several):
            expected = [s.advantage for s in one.samples for _ in range(samples_each)]
            assert [s.advantage for s in many.samples] == expected


def test_reinforce_compares_with_the_whole_batch() -> None:
    groups = [group_of(0, [1.0, 1.0]), group_of(1, [0.0, 0.0])]
    algorithms.assign_advantages(groups, AlgorithmConfig(estimator="reinforce"))
    assert [s.advantage for g in groups for s in g.samples] == [0.5, 0.5, -0.5, -0.5]


@given(st.lists(rewards, min_size=2, max_size=4))
def test_a_group_scope_needs_its_group_only(groups: list[list[float]]) -> None:
    whole, alone = ([group_of(i, values) for i, values in enumerate(groups)] for _ in range(2))
    algorithms.assign_advantages(whole, AlgorithmConfig())
    for group in alone:
        algorithms.assign_advantages([group], AlgorithmConfig())
    for a, b in zip(whole, alone, strict=True):
        assert [s.advantage for s in a.samples] == [s.advantage for s in b.samples]


# --- token losses ----------------------------------------------------------------------------


@given(logprob, logprob, st.floats(-3, 3))
def test_the_clip_only_ever_raises_the_loss(new: float, behaviour: float, advantage: float) -> None:
    ratio = math.exp(new - behaviour)
    terms = loss_of(new, behaviour, advantage)
    assert terms.loss.item() >= -ratio * advantage - 1e-9 or (advantage < 0 and ratio > 3)
    assert terms.ratio.item() == pytest.approx(ratio)
    if 0.8 <= ratio <= 1.3:
        assert terms.loss.item() == pytest.approx(-ratio * advantage)
        assert not terms.is_clipped


@given(logprob, logprob, st.floats(-3, 3).filter(lambda a: abs(a) > 1e-3))
def test_a_clipped_token_has_no_gradient_and_others_do(new: float, behaviour: float, advantage: float) -> None:
    moving = torch.tensor([new], dtype=torch.float64, requires_grad=True)
    fixed = [torch.tensor([x], dtype=torch.float64) for x in (behaviour, advantage)]
    terms = algorithms.policy_loss(moving, *fixed, clip_low=0.2, clip_high=0.3)
    terms.loss.sum().backward()
    assert moving.grad is not None
    assert (moving.grad.item() == 0.0) == bool(terms.is_clipped)
    ratio = math.exp(new - behaviour)
    assert bool(terms.is_clipped) == (ratio > 1.3 if advantage > 0 else not 0.8 <= ratio <= 3)


@given(st.floats(-1e4, 0), st.floats(-1e4, 0), st.floats(-1e3, 1e3), st.booleans())
def test_no_token_can_spoil_a_step(new: float, behaviour: float, advantage: float, is_decoupled: bool) -> None:
    moving = torch.tensor([new], requires_grad=True)
    fixed = [torch.tensor([x]) for x in (behaviour, advantage)]
    proximal = moving.detach() if is_decoupled else None
    terms = algorithms.policy_loss(moving, *fixed, clip_low=0.2, clip_high=0.3, proximal=proximal)
    (terms.loss + algorithms.k3_kl(moving, fixed[0])).sum().backward()
    assert moving.grad is not None
    assert moving.grad.isfinite() and terms.ratio.isfinite()
    assert terms.loss.abs().item() <= 3 * abs(advantage) * 1.01


@given(logprob, logprob, logprob, st.floats(-3, 3))
def test_decoupled_clips_around_the_proximal_policy(
    new: float, proximal: float, behaviour: float, advantage: float
) -> None:
    terms = loss_of(new, behaviour, advantage, proximal=torch.tensor([proximal], dtype=torch.float64))
    inner = loss_of(new, proximal, advantage)
    assert terms.loss.item() == pytest.approx(min(2, math.exp(proximal - behaviour)) * inner.loss.item(), abs=1e-9)
    assert bool(terms.is_clipped) == bool(inner.is_clipped)


def test_the_proximal_weight_carries_no_gradient() -> None:
    new = torch.tensor([-1.0], requires_grad=True)
    behaviour, advantage = torch.tensor([-2.0]), torch.tensor([1.0])
    algorithms.policy_loss(new, behaviour, advantage, clip_low=0.2, clip_high=0.2, proximal=new).loss.sum().backward()
    assert new.grad is not None
    assert new.grad.item() == 0.0  # ratio is 1 by construction: only the detached weight depends on new


@given(logprob, logprob)
def test_k3_is_never_negative_and_zero_for_equals(new: float, other: float) -> None:
    a, b = torch.tensor(new, dtype=torch.float64), torch.tensor(other, dtype=torch.float64)
    assert algorithms.k3_kl(a, b) >= 0
    assert algorithms.k3_kl(a, a) == 0


def test_k3_estimates_the_divergence() -> None:
    p, q = torch.log_softmax(torch.tensor([[0.0, 1.0, 2.0], [0.5, 0.5, 0.5]], dtype=torch.float64), -1)
    expected = (p.exp() * (p - q)).sum()
    assert (p.exp() * algorithms.k3_kl(p, q)).sum() == pytest.approx(expected.item())


def test_entropy_of_a_uniform_distribution() -> None:
    rows = torch.log_softmax(torch.zeros(2, 8), -1)
    assert algorithms.entropy_of(rows).tolist() == pytest.approx([math.log(8)] * 2)


# --- sums and schedule -----------------------------------------------------------------------


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=6), min_size=1, max_size=6), st.randoms())
def test_sums_over_any_pieces_give_the_mean(samples: list[list[float]], random: object) -> None:
    expected = {
        "token_mean": np.mean([x for sample in samples for x in sample]),
        "sample_mean": np.mean([np.mean(sample) for sample in samples]),
        "sample_sum": np.mean([np.sum(sample) for sample in samples]),
    }
    random.shuffle(samples)  # type: ignore[attr-defined]
    for aggregation, mean in expected.items():
        pieces = [sum(s) * algorithms.token_weight(aggregation, len(s)) for s in samples]
        total = algorithms.step_total(aggregation, sum(map(len, samples)), len(samples))
        assert sum(pieces) / total == pytest.approx(mean, abs=1e-9)


def test_a_step_of_nothing_does_not_divide_by_zero() -> None:
    assert algorithms.step_total("token_mean", 0, 0) == algorithms.step_total("sample_mean", 0, 0) == 1


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_learning_rate_warms_up_and_ends_where_it_should(schedule: str) -> None:
    trainer = TrainerConfig(lr=1.0, warmup_steps=4, schedule=schedule, min_lr_ratio=0.1)
    rates = [algorithms.learning_rate(trainer, step, 20) for step in range(25)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[4] == 1.0
    assert all(b <= a for a, b in pairwise(rates[4:]))
    assert rates[20] == rates[24] == pytest.approx(1.0 if schedule == "constant" else 0.1)
