from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart_hpc.config.algorithms import Part, entries
from rollart_hpc.config.schema import AlgorithmConfig
from rollart_hpc.trainers.algorithms import Objective, entropy_of
from rollart_hpc.trainers.algorithms.divergences import k1, k2, k3
from rollart_hpc.types import TrainGroup
from tests.trainers.algorithms.making import group_of, tokens, vector

rewards = st.lists(st.floats(-100, 100, allow_subnormal=False), min_size=1, max_size=6)
logprob = st.floats(-8, 0, allow_subnormal=False)


def assigned(groups: list[TrainGroup], **keys: object) -> list[TrainGroup]:
    Objective(AlgorithmConfig(**keys)).assign(groups)  # type: ignore[arg-type]
    return groups


def advantages(groups: list[TrainGroup]) -> list[list[float]]:
    return [list(sample.advantages.tolist()) for group in groups for sample in group.samples]  # type: ignore[union-attr]


# --- advantages ------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", entries(Part.ESTIMATOR))
@given(st.lists(rewards, min_size=1, max_size=3))
@settings(max_examples=10)
def test_a_trajectory_counts_once_however_many_samples_it_has(estimator: str, values: list[list[float]]) -> None:
    """Two samples of one turn, or one sample of two turns: the same tokens."""
    whole = advantages(assigned([group_of(i, v, turns=(2, 2)) for i, v in enumerate(values)], estimator=estimator))
    halves = advantages(assigned([group_of(i, v, 2, turns=(2,)) for i, v in enumerate(values)], estimator=estimator))
    assert [x for sample in whole for x in sample] == [x for sample in halves for x in sample]


def test_tokens_of_a_sample_may_have_advantages_of_their_own() -> None:
    groups = assigned([group_of(0, [1.0, 0.0])], estimator="turn_return", estimator_params={"gamma": 0.5})
    assert advantages(groups) == [[0.5, 0.5, 1, 1, 1], [0.0] * 5]


def test_shaping_comes_before_the_estimator_in_order_and_whitening_after() -> None:
    shaped = {"clip": {"low": 0.0, "high": 1.0}, "normalise_group": {"mean": False}}
    groups = assigned([group_of(0, [9.0, 0.0])], estimator="raw", shaping=shaped)
    assert advantages(groups)[0][0] == pytest.approx(1 / math.sqrt(0.5), abs=1e-4)
    groups = assigned([group_of(0, [9.0, 0.0])], estimator="raw", shaping={"whiten": None})
    assert np.mean(advantages(groups)) == pytest.approx(0.0, abs=1e-6)


def test_plays_that_are_left_out_still_count_in_the_baseline() -> None:
    group = group_of(0, [1.0, 0.0])
    group.samples[0].is_cut = True
    assigned([group], estimator="dr_grpo", shaping={"leave_out_cut": {}})
    assert [sample.is_left_out for sample in group.samples] == [True, False]
    assert group.samples[1].advantages == pytest.approx([-0.5] * 5)


# --- sums ------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=1, max_size=4))
def test_sums_over_any_pieces_give_the_mean(sizes: list[list[int]]) -> None:
    """`sizes`: the tokens of each trajectory, by group; each trajectory has two samples."""
    groups = []
    for number, counts in enumerate(sizes):
        groups.append(TrainGroup(number, "task"))
        for i, count in enumerate(counts):
            made = group_of(number, [0.0], 2, turns=(count,))
            for sample in made.samples:
                sample.trajectory = f"{number}.{i}"
            groups[-1].samples += made.samples
    rng = np.random.default_rng(0)
    losses = [[[rng.normal(size=count) for _ in range(2)] for count in counts] for counts in sizes]
    by_sample = [sample for group in losses for play in group for sample in play]
    expected = {
        "token_mean": np.mean(np.concatenate(by_sample)),
        "sample_mean": np.mean([np.mean(s) for s in by_sample]),
        "sample_sum": np.mean([np.sum(s) for s in by_sample]),
        "constant": np.mean([np.sum(s) / 1024 for s in by_sample]),
        "trajectory_mean": np.mean([np.mean(np.concatenate(play)) for group in losses for play in group]),
        "group_mean": np.mean([np.mean(np.concatenate([s for p in group for s in p])) for group in losses]),
    }
    assert set(expected) == set(entries(Part.AGGREGATION))
    counts_of_step = {
        "tokens": sum(map(len, by_sample)), "samples": len(by_sample),
        "trajectories": sum(map(len, sizes)), "groups": len(sizes),
    }  # fmt: skip
    for aggregation, mean in expected.items():
        objective = Objective(AlgorithmConfig(aggregation=aggregation))
        weights = [weight for group in groups for weight in objective.weights(group)]
        total = objective.total(**counts_of_step)
        assert sum(w * s.sum() for w, s in zip(weights, by_sample)) / total == pytest.approx(mean, abs=1e-9)


def test_a_step_of_nothing_does_not_divide_by_zero() -> None:
    for aggregation in entries(Part.AGGREGATION):
        objective = Objective(AlgorithmConfig(aggregation=aggregation))
        assert objective.total(tokens=0, samples=0, trajectories=0, groups=0) == 1
        assert objective.weights(group_of(0, [1.0], turns=(0,))) == [1.0]


# --- terms -----------------------------------------------------------------------------------

NEW, OLD = [-1.0, -2.0, -0.5], [-2.0, -2.0, -2.5]


def terms(new: object = NEW, reference: list[float] | None = None, bonus: list[float] | None = None, **keys: object):
    algorithm = AlgorithmConfig(**keys)  # type: ignore[arg-type]
    given_tokens = tokens(new, OLD, [1.0, 1.0, 1.0], samples=[0, 0, 1], is_decoupled=algorithm.decoupled)
    optional = [None if x is None else vector(x) for x in (bonus, reference)]
    return Objective(algorithm).terms(given_tokens, entropy=optional[0], reference=optional[1])


def test_decoupled_weighs_tokens_by_a_capped_weight_unless_told_otherwise() -> None:
    assert terms(decoupled=True).loss.tolist() == pytest.approx([-2.0, -1.0, -2.0])
    capped = terms(decoupled=True, corrections={"token": {"high": 5}})
    assert capped.loss.tolist() == pytest.approx([-math.e, -1.0, -5.0])
    assert terms(decoupled=True, corrections={"none": {}}).loss.tolist() == pytest.approx([-1.0] * 3)


def test_corrections_multiply_and_carry_no_gradient() -> None:
    moving = vector(NEW).requires_grad_()
    found = terms(moving, decoupled=True, corrections={"token": {}, "veto": {"high": 3.0}})
    assert found.correction.tolist() == pytest.approx([2.0, 1.0, 0.0])
    found.loss.sum().backward()
    assert moving.grad.tolist() == pytest.approx([-2.0, -1.0, 0.0])  # type: ignore[union-attr]


def test_masks_work_with_ratios_to_sampling_too() -> None:
    assert terms(corrections={"veto": {"high": 3.0}}).loss.tolist() == pytest.approx([-1.2, -1.0, 0.0])


def test_entropy_and_kl_are_added() -> None:
    plain = terms().loss
    assert (terms(bonus=[1.0, 2.0, 3.0], entropy=0.5).loss - plain).tolist() == pytest.approx([-0.5, -1.0, -1.5])
    with_kl = terms(kl=0.1, reference=[-1.5, -2.0, -0.5])
    assert (with_kl.loss - plain).tolist() == pytest.approx([0.0106530660, 0.0, 0.0])


def test_weighted_k3_has_the_gradient_of_the_reverse_kl_whatever_sampled() -> None:
    """In expectation over tokens of the sampling policy, by the table of all tokens."""
    logits = torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64, requires_grad=True)
    new = torch.log_softmax(logits, -1)
    behaviour, reference = (torch.log_softmax(vector(x), -1) for x in ([1.0, 0.0, 0.0], [0.0, 0.5, -0.5]))
    made = tokens(new, behaviour.tolist(), [0.0] * 3, samples=[0, 1, 2])
    keys = {"kl": 1.0, "kl_weighted": True, "loss": "reinforce"}
    found = Objective(AlgorithmConfig(**keys)).terms(made, entropy=None, reference=reference)  # type: ignore[arg-type]
    (got,) = torch.autograd.grad((behaviour.exp() * found.loss).sum(), logits, retain_graph=True)
    (expected,) = torch.autograd.grad((new.exp() * (new - reference)).sum(), logits)
    assert got.tolist() == pytest.approx(expected.tolist(), abs=1e-9)


def test_kl_in_the_reward_lowers_the_advantages_of_earlier_tokens_too() -> None:
    keys = {"kl": 0.1, "kl_estimator": "k1", "kl_in": "reward", "loss": "reinforce"}
    found = terms(reference=[-1.5, -3.0, -0.5], **keys)
    lowered = [1.0 - 0.1 * 1.5, 1.0 - 0.1 * 1.0, 1.0]
    assert found.loss.tolist() == pytest.approx([-a * new for a, new in zip(lowered, NEW)])


@pytest.mark.parametrize("part", [0, 1, 2])
def test_terms_do_not_depend_on_how_the_batch_is_cut(part: int) -> None:
    keys = [
        {"loss": "gspo", "loss_params": {"clip_high": 9.0}},
        {"decoupled": True, "corrections": {"sequence": {"high": 9.0}, "veto": {}}},
        {"kl": 0.1, "kl_in": "reward", "kl_estimator": "k1"},
    ][part]
    objective = Objective(AlgorithmConfig(**keys))  # type: ignore[arg-type]
    rng = np.random.default_rng(part)
    new, old, reference = (-rng.uniform(0.1, 2, 6) for _ in range(3))

    def cut(at: slice, samples: list[int]) -> list[float]:
        made = tokens(
            list(new[at]),
            list(old[at]),
            [1.0] * len(samples),
            samples=samples,
            is_decoupled=keys.get("decoupled", False),  # type: ignore[arg-type]
        )
        other = vector(list(reference[at])) if "kl" in keys else None
        return list(objective.terms(made, entropy=None, reference=other).loss.tolist())

    whole = cut(slice(0, 6), [0, 0, 0, 1, 1, 2])
    pieces = cut(slice(0, 3), [0, 0, 0]) + cut(slice(3, 5), [0, 0]) + cut(slice(5, 6), [0])
    assert whole == pytest.approx(pieces)


# --- KL and entropy --------------------------------------------------------------------------


def test_known_divergences() -> None:
    gap = vector([0.5])
    assert [k(gap).item() for k in (k1, k2, k3)] == pytest.approx([0.5, 0.125, 0.10653], abs=1e-5)


@given(logprob, logprob)
def test_k3_is_never_negative_and_zero_for_equals(new: float, other: float) -> None:
    assert k3(vector([new - other])) >= 0
    assert k3(vector([0.0])) == 0


def test_k3_estimates_the_divergence() -> None:
    p, q = torch.log_softmax(torch.tensor([[0.0, 1.0, 2.0], [0.5, 0.5, 0.5]], dtype=torch.float64), -1)
    assert (p.exp() * k3(p - q)).sum() == pytest.approx((p.exp() * (p - q)).sum().item())


@given(st.floats(-1e5, 1e5))
def test_divergences_are_finite(gap: float) -> None:
    for divergence in (k1, k2, k3):
        moving = vector([gap]).requires_grad_()
        divergence(moving).sum().backward()
        assert moving.grad is not None
        assert moving.grad.isfinite().all()


@pytest.mark.parametrize(("measured", "factor"), [(0.1, 1.0), (0.11, 1.001), (0.5, 1.002), (0.0, 0.998)])
def test_an_adapted_coefficient_moves_by_a_fifth_over_its_horizon(measured: float, factor: float) -> None:
    objective = Objective(AlgorithmConfig(kl=0.2, kl_target=0.1, kl_horizon=1000))
    objective.adapt(measured, 10)
    assert objective.kl == pytest.approx(0.2 * factor)
    fixed = Objective(AlgorithmConfig(kl=0.2))
    fixed.adapt(measured, 10)
    assert fixed.kl == 0.2


def test_entropy_of_a_uniform_distribution() -> None:
    assert entropy_of(torch.log_softmax(torch.zeros(2, 8), -1)).tolist() == pytest.approx([math.log(8)] * 2)


# --- functions of the user's own -------------------------------------------------------------


def test_the_example_of_the_docs_runs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "algorithms.md").read_text()
    code = page.split("```python\n")[1].split("```")[0]
    (tmp_path / "mine.py").write_text(code)
    keys = {
        "estimator": f"{tmp_path}/mine.py:above_mean", "estimator_params": {"margin": 0.25},
        "loss": f"{tmp_path}/mine.py:quadratic", "loss_params": {"strength": 0.5},
    }  # fmt: skip
    algorithm = AlgorithmConfig(**keys)  # type: ignore[arg-type]
    assert algorithm.needs_whole_batch is False
    groups = assigned([group_of(0, [1.0, 0.5, 0.0], turns=(1,))], **keys)
    assert advantages(groups) == [[0.25], [-0.25], [-0.75]]
    made = tokens([-1.0], [-3.0], [2.0])
    assert Objective(algorithm).terms(made, entropy=None, reference=None).loss.tolist() == [2.0 + 0.5 * 4.0]
