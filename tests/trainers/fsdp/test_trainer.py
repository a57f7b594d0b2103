from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Gemma2Config, LlamaConfig, MistralConfig, PretrainedConfig

from rollart_hpc.config.recipes import RECIPES, preset
from rollart_hpc.errors import SiteError
from rollart_hpc.trainers.fsdp.lora import full_tensor
from rollart_hpc.trainers.fsdp.trainer import FsdpTrainer
from rollart_hpc.trainers.world import World
from rollart_hpc.types import OBSERVED, Sample, TokenRecord, TrainGroup
from tests.trainers.plain import PlainTrainer, learned, make_config, make_groups, make_model, make_record

VARIANTS = {
    "grpo": {},
    "temperature": {"flow__temperature": 0.7},
    "entropy": {"algorithm__entropy": 0.01},
    "kl": {"algorithm__kl": 0.1},
    "decoupled": {"algorithm__decoupled": True},
    "sample_mean": {"algorithm__aggregation": "sample_mean"},
    "sample_sum": {"algorithm__aggregation": "sample_sum"},
    "reinforce": {"algorithm__estimator": "reinforce"},
    "wide clip": {"algorithm__loss_params": {"clip_low": 0.9, "clip_high": 50.0}},
    "one sample each": {"trainer__microbatch_tokens": 1},
    "all in one": {"trainer__microbatch_tokens": 100_000},
}


def gradients(trainer: FsdpTrainer) -> dict[str, torch.Tensor]:
    """Summed, not yet divided."""
    trainer._add_up()
    return {n: full_tensor(p.grad).clone() for n, p in trainer._model.named_parameters() if p.grad is not None}


def weights(trainer: FsdpTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.export()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_steps_equal_those_of_the_plain_trainer(variant: str, model_dir: Path, world: World) -> None:
    config = make_config(**VARIANTS[variant])
    plain, trainer = PlainTrainer(config, model_dir), FsdpTrainer(config, model_dir, world)
    for seed in range(3):
        expected = plain.step(make_groups(seed))
        trainer.accumulate(make_groups(seed))
        result = trainer.step()
        assert result.metrics["loss"] == pytest.approx(expected, abs=1e-5)
    for name, tensor in weights(trainer).items():
        torch.testing.assert_close(tensor, plain.model.state_dict()[name], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v != "reinforce"])
def test_gradients_equal_those_of_the_plain_trainer(variant: str, untied_dir: Path, world: World) -> None:
    config = make_config(**VARIANTS[variant])
    trainer = FsdpTrainer(config, untied_dir, world)
    groups = make_groups(7)
    _, expected = PlainTrainer(config, untied_dir).gradients(groups)
    trainer.accumulate(groups)
    counts = trainer._batch.counts
    total = counts.tokens if config.algorithm.aggregation == "token_mean" else counts.samples
    got = gradients(trainer)
    assert got.keys() == expected.keys()
    for name, gradient in got.items():
        torch.testing.assert_close(gradient / total, expected[name], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("keys", [{}, {"algorithm__decoupled": True}])
def test_several_updates_equal_those_of_the_plain_trainer(keys: dict[str, bool], model_dir: Path, world: World) -> None:
    config = make_config(algorithm__updates=2, algorithm__epochs=2, trainer__lr=0.01, **keys)
    plain, trainer = PlainTrainer(config, model_dir), FsdpTrainer(config, model_dir, world)
    clipped = []
    for seed in range(2):
        groups = make_groups(seed)
        plain.store(groups)
        expected = [plain.step(groups[first::2]) for first in (0, 1, 0, 1)]
        for group in make_groups(seed):
            trainer.accumulate([group])
        result = trainer.step()
        assert result.metrics["loss"] == pytest.approx(np.mean(expected), abs=1e-5)
        assert result.metrics["samples"] == sum(len(group.samples) for group in groups)
        clipped.append(result.metrics["clip_fraction"])
    assert min(clipped) > 0
    for name, tensor in weights(trainer).items():
        torch.testing.assert_close(tensor, plain.model.state_dict()[name], atol=2e-4, rtol=1e-3)


def test_what_compares_with_the_sampling_policy_is_of_the_weights_before_the_first_update(
    model_dir: Path, world: World
) -> None:
    once = FsdpTrainer(make_config(trainer__lr=0.01), model_dir, world)
    often = FsdpTrainer(make_config(trainer__lr=0.01, algorithm__updates=2, algorithm__epochs=3), model_dir, world)
    found = []
    for trainer in (once, often):
        trainer.accumulate(make_groups(1))
        found.append(trainer.step().metrics)
    for name in ("kl_behaviour", "ratio_mean", "logprob_gap_mean", "effective_samples", "lag0_kl", "tokens"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-5), name


def test_one_bad_mini_batch_does_not_stop_the_others(model_dir: Path, world: World) -> None:
    trainer = FsdpTrainer(make_config(algorithm__updates=2), model_dir, world)
    groups = make_groups(1)
    groups[0].samples[0].record.logprobs[groups[0].samples[0].record.sampled] = np.float32(np.nan)
    trainer.accumulate(groups)
    result = trainer.step()
    assert result.metrics["update_skipped"] == 1
    assert result.digest != result.parent_digest
    assert result.metrics["grad_norm"] > 0


def test_a_refreshed_reference_is_the_policy_and_is_in_checkpoints(
    model_dir: Path, world: World, tmp_path: Path
) -> None:
    config = make_config(algorithm__kl=0.1, algorithm__kl_refresh=2, algorithm__kl_target=0.01, trainer__lr=0.01)
    trainer, other = (FsdpTrainer(config, model_dir, world) for _ in range(2))
    found = []
    for seed in range(3):
        trainer.accumulate(make_groups(seed))
        found.append(trainer.step().metrics)
    assert [step["kl_reference"] > 1e-6 for step in found] == [False, True, False]
    assert found[0]["kl_coefficient"] == 0.1 > found[1]["kl_coefficient"]
    trainer.save(tmp_path / "c")
    other.load(tmp_path / "c")
    for one in (trainer, other):
        one.accumulate(make_groups(3))
    assert trainer.step() == other.step()


def test_streamed_equals_unstreamed(model_dir: Path, world: World) -> None:
    whole, streamed = (FsdpTrainer(make_config(), model_dir, world) for _ in range(2))
    whole.accumulate(make_groups(3))
    for group in make_groups(3):
        streamed.accumulate([group])
    for name, gradient in gradients(whole).items():
        torch.testing.assert_close(gradient, gradients(streamed)[name], atol=1e-4, rtol=1e-5)
    a, b = whole.step(), streamed.step()
    assert learned(a.metrics) == pytest.approx(learned(b.metrics), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("chunks", [[4], [1, 1, 1, 1], [2, 2], [1, 3]])
def test_deterministic_steps_do_not_depend_on_chunks(
    chunks: list[int], model_dir: Path, world: World, restore_kernels: None
) -> None:
    config = make_config(deterministic=True, algorithm__entropy=0.01)
    whole, cut = (FsdpTrainer(config, model_dir, world) for _ in range(2))
    for seed in range(3):
        whole.accumulate(make_groups(seed)[::-1])
        groups = make_groups(seed)
        for size in chunks:
            cut.accumulate(groups[:size])
            del groups[:size]
        a, b = whole.step(), cut.step()
        assert a.metrics == b.metrics
        assert a.digest == b.digest


def test_a_batch_scope_is_held_back_until_the_step(model_dir: Path, world: World) -> None:
    config = make_config(algorithm__estimator="reinforce")
    whole, streamed = (FsdpTrainer(config, model_dir, world) for _ in range(2))
    whole.accumulate(make_groups(3))
    for group in make_groups(3):
        streamed.accumulate([group])
    assert not gradients(streamed)
    assert whole.step().digest == streamed.step().digest


COMBINATIONS = {
    "gspo": {"algorithm__loss": "gspo", "algorithm__aggregation": "group_mean", "algorithm__estimator": "gigpo"},
    "several updates": {"algorithm__updates": 2, "algorithm__epochs": 2, "algorithm__decoupled": True},
    "cispo": {"algorithm__loss": "cispo", "algorithm__estimator": "lite_ppo", "algorithm__aggregation": "constant"},
    "corrected": {
        "algorithm__decoupled": True,
        "algorithm__corrections": {"turn": {"high": 3.0}, "geometric_mask": {"low": 0.5, "high": 9.0}},
        "algorithm__estimator": "turn_return", "algorithm__aggregation": "trajectory_mean",
    },
    "kl in the reward": {
        "algorithm__kl": 0.1, "algorithm__kl_estimator": "k1", "algorithm__kl_in": "reward",
        "algorithm__estimator": "reinforce_pp", "algorithm__loss": "kimi", "algorithm__shaping": {"whiten": {}},
    },
}  # fmt: skip


@pytest.mark.parametrize("variant", COMBINATIONS)
def test_a_step_depends_neither_on_packing_nor_on_chunks(variant: str, model_dir: Path, world: World) -> None:
    budgets = (1, 64, 100_000)
    trainers = [
        FsdpTrainer(make_config(trainer__microbatch_tokens=budget, **COMBINATIONS[variant]), model_dir, world)
        for budget in budgets
    ]
    for trainer in trainers[:2]:
        for group in make_groups(3):
            trainer.accumulate([group])
    trainers[2].accumulate(make_groups(3))
    first, *others = [learned(trainer.step().metrics) for trainer in trainers]
    assert first["grad_norm"] > 0
    for metrics in others:
        assert metrics == pytest.approx(first, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_trains(recipe: str, model_dir: Path, world: World) -> None:
    config = make_config(**{f"algorithm__{key}": value for key, value in preset(recipe).items() if key != "critic"})
    trainer = FsdpTrainer(config, model_dir, world)
    for seed in range(2):
        groups = make_groups(seed)
        for sample in (s for group in groups for s in group.samples):
            sample.reward = abs(sample.reward)  # max_rl learns nothing where the mean is negative
        trainer.accumulate(groups, last=True)
        metrics = trainer.step().metrics
        assert metrics["grad_norm"] > 0 and metrics["update_skipped"] == 0, metrics


def test_plays_that_are_left_out_count_in_the_total_only(model_dir: Path, world: World) -> None:
    def step(is_cut: bool, **keys: object) -> dict[str, float]:
        trainer = FsdpTrainer(make_config(**keys), model_dir, world)
        groups = make_groups(3)
        for group in groups[1:]:
            for sample in group.samples:
                sample.is_cut = is_cut
        trainer.accumulate(groups)
        return trainer.step().metrics

    alone = FsdpTrainer(make_config(), model_dir, world)
    alone.accumulate(make_groups(3)[:1])
    one = alone.step().metrics
    cut, whole = step(True, algorithm__shaping={"leave_out_cut": {}}), step(False)
    assert cut["tokens"] == whole["tokens"] > one["tokens"]
    assert cut["loss"] * cut["tokens"] == pytest.approx(one["loss"] * one["tokens"], rel=1e-4, abs=1e-6)
    assert cut["left_out_fraction"] == pytest.approx(1 - one["tokens"] / whole["tokens"])


def test_metrics_by_lag(model_dir: Path, world: World) -> None:
    config = make_config(algorithm__decoupled=True, algorithm__corrections={"token": {"high": 1.5, "how": "mask"}})
    trainer = FsdpTrainer(config, model_dir, world)
    trainer.version = 7
    groups = make_groups(3, num_groups=2)
    for group, version in zip(groups, (7, 1)):
        for sample in group.samples:
            sample.record.versions[sample.record.versions >= 0] = version
    trainer.accumulate(groups)
    metrics = trainer.step().metrics
    assert metrics["lag0_tokens"] + metrics["lag4_tokens"] == pytest.approx(1.0)
    assert "lag1_tokens" not in metrics
    assert 0 < metrics["effective_samples"] < 1
    parts = [metrics[f"lag{lag}_tokens"] * metrics[f"lag{lag}_masked"] for lag in (0, 4)]
    assert metrics["correction_masked"] == pytest.approx(sum(parts)) and metrics["correction_masked"] > 0
    parts = [metrics[f"lag{lag}_tokens"] * metrics[f"lag{lag}_kl"] for lag in (0, 4)]
    assert metrics["kl_behaviour"] == pytest.approx(sum(parts))


def test_what_fills_no_micro_batch_waits_for_more(model_dir: Path, world: World) -> None:
    trainer = FsdpTrainer(make_config(trainer__microbatch_tokens=1000), model_dir, world)
    for group in make_groups(3):
        trainer.accumulate([group])
        assert all(p.grad is None for p in trainer._model.parameters())
    metrics = trainer.step().metrics
    assert (metrics["micro_batches"], metrics["packing_efficiency"]) == (1, 1)
    trainer.accumulate(make_groups(1))
    trainer.discard()
    assert trainer.step().metrics["micro_batches"] == 0


def test_what_fills_micro_batches_is_trained_at_once_unless_the_batch_is_complete(
    model_dir: Path, world: World
) -> None:
    early, late = (FsdpTrainer(make_config(), model_dir, world) for _ in range(2))
    early.accumulate(make_groups(3))
    late.accumulate(make_groups(3), last=True)
    assert all(p.grad is not None for p in early._model.parameters())
    assert all(p.grad is None for p in late._model.parameters())
    assert learned(early.step().metrics) == pytest.approx(learned(late.step().metrics), rel=1e-5, abs=1e-6)


def test_step_chains_versions_and_digests(model_dir: Path, world: World) -> None:
    trainer = FsdpTrainer(make_config(), model_dir, world)
    first = trainer.digest
    trainer.accumulate(make_groups(1))
    one = trainer.step()
    trainer.accumulate(make_groups(2))
    two = trainer.step()
    assert (one.version, two.version, trainer.version) == (1, 2, 2)
    assert one.parent_digest == first != one.digest == two.parent_digest != two.digest == trainer.digest


@pytest.mark.parametrize("mode", [{}, {"deterministic": True}])
def test_discard_forgets_what_was_accumulated(
    mode: dict[str, bool], model_dir: Path, world: World, restore_kernels: None
) -> None:
    clean, messy = (FsdpTrainer(make_config(**mode), model_dir, world) for _ in range(2))
    messy.accumulate(make_groups(9))
    messy.discard()
    for trainer in (clean, messy):
        trainer.accumulate(make_groups(1))
    assert clean.step() == messy.step()


def test_logprobs_are_those_of_the_plain_model(model_dir: Path, world: World) -> None:
    config = make_config(flow__temperature=0.8)
    trainer, plain = FsdpTrainer(config, model_dir, world), PlainTrainer(config, model_dir)
    records = [make_record(np.random.default_rng(i), 20 + i) for i in range(3)]
    for record, got in zip(records, trainer.logprobs(records), strict=True):
        rows = plain.logprobs(plain.model, record).detach().numpy()
        expected = np.append(0.0, rows[np.arange(len(record) - 1), record.ids[1:]]) * record.sampled
        np.testing.assert_allclose(got, expected, atol=1e-5)
    trainer.accumulate(make_groups(1))
    trainer.step()
    assert trainer.version == 1


def test_on_policy_data_has_no_gap_and_ratio_one(model_dir: Path, world: World) -> None:
    trainer = FsdpTrainer(make_config(), model_dir, world)
    groups = make_groups(5)
    records = [sample.record for group in groups for sample in group.samples]
    for record, logprobs in zip(records, trainer.logprobs(records), strict=True):
        record.logprobs = logprobs
    trainer.accumulate(groups)
    metrics = trainer.step().metrics
    assert metrics["logprob_gap_max"] < 1e-5
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["ratio_max"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["clip_fraction"] == 0.0
    assert metrics["kl_behaviour"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["logprob_gap_tokens"] == metrics["tokens"] == sum(int(r.sampled.sum()) for r in records)


def test_the_gap_looks_at_tokens_of_the_current_version_only(model_dir: Path, world: World) -> None:
    trainer = FsdpTrainer(make_config(), model_dir, world)
    trainer.version = 1
    trainer.accumulate(make_groups(5))  # all sampled under version 0
    assert trainer.step().metrics["logprob_gap_tokens"] == 0


def test_samples_without_a_sampled_token_are_left_out(model_dir: Path, world: World) -> None:
    bare, padded = (FsdpTrainer(make_config(), model_dir, world) for _ in range(2))
    bare.accumulate(make_groups(1))
    groups = make_groups(1)
    ids = np.array([5, 6, 7], np.int32)
    unsampled = TokenRecord(ids, np.zeros(3, np.float32), np.full(3, OBSERVED, np.int32))
    groups[0].samples.append(Sample("0.0", 0, "task", unsampled, groups[0].samples[0].reward))
    padded.accumulate(groups)
    assert bare.step().metrics == padded.step().metrics


def test_a_step_without_samples_keeps_the_weights(model_dir: Path, world: World) -> None:
    trainer = FsdpTrainer(make_config(), model_dir, world)
    trainer.accumulate([TrainGroup(0, "task")])
    result = trainer.step()
    assert result.digest == result.parent_digest
    assert result.metrics["tokens"] == 0


def test_gradients_that_are_not_finite_are_not_applied(model_dir: Path, world: World) -> None:
    trainer = FsdpTrainer(make_config(), model_dir, world)
    groups = make_groups(1)
    groups[0].samples[0].record.logprobs[groups[0].samples[0].record.sampled] = np.float32(np.nan)
    trainer.accumulate(groups)
    result = trainer.step()
    assert result.metrics["update_skipped"] == 1
    assert result.digest == result.parent_digest
    trainer.accumulate(make_groups(2))
    assert trainer.step().metrics["update_skipped"] == 0


def test_export_yields_tied_weights_once(model_dir: Path, untied_dir: Path, world: World) -> None:
    for directory, has_head in ((model_dir, False), (untied_dir, True)):
        trainer = FsdpTrainer(make_config(), directory, world)
        plain = PlainTrainer(make_config(), directory).model.state_dict()
        got = weights(trainer)
        assert ("lm_head.weight" in got) is has_head
        assert got.keys() == plain.keys() - (set() if has_head else {"lm_head.weight"})
        assert all(torch.equal(tensor, plain[name]) for name, tensor in got.items())


def test_bfloat16_exports_bfloat16_and_trains_in_float32(model_dir: Path, world: World) -> None:
    trainer = FsdpTrainer(make_config(trainer__dtype="bfloat16"), model_dir, world)
    full = FsdpTrainer(make_config(), model_dir, world)
    for t in (trainer, full):
        t.accumulate(make_groups(1))
    assert {gradient.dtype for gradient in gradients(trainer).values()} == {torch.float32}
    assert {parameter.dtype for parameter in trainer._model.parameters()} == {torch.float32}
    a, b = trainer.step().metrics, full.step().metrics
    assert a["loss"] == pytest.approx(b["loss"], abs=0.05)
    assert {tensor.dtype for _, tensor in trainer.export()} == {torch.bfloat16}


def test_a_model_whose_attention_is_not_plain_is_refused_at_once(tmp_path: Path, world: World) -> None:
    with pytest.raises(SiteError, match="Gemma2Attention needs softcap"):
        FsdpTrainer(make_config(), make_model(tmp_path / "m", family=Gemma2Config), world)


@pytest.mark.parametrize("family", [LlamaConfig, MistralConfig])
def test_other_families_of_models(family: type[PretrainedConfig], tmp_path: Path, world: World) -> None:
    directory, config = make_model(tmp_path / "m", family=family), make_config()
    expected = PlainTrainer(config, directory).step(make_groups(4))
    trainer = FsdpTrainer(config, directory, world)
    trainer.accumulate(make_groups(4))
    assert trainer.step().metrics["loss"] == pytest.approx(expected, abs=1e-5)


def test_sliding_windows_are_respected(tmp_path: Path, world: World) -> None:
    types = ["sliding_attention", "full_attention"]
    directory = make_model(tmp_path / "m", use_sliding_window=True, sliding_window=8, layer_types=types)
    config = make_config()
    expected = PlainTrainer(config, directory).step(make_groups(4))
    trainer = FsdpTrainer(config, directory, world)
    trainer.accumulate(make_groups(4))
    assert trainer.step().metrics["loss"] == pytest.approx(expected, abs=1e-5)


def test_it_learns_which_token_is_rewarded(model_dir: Path, world: World) -> None:
    trainer = FsdpTrainer(make_config(trainer__lr=0.02, algorithm__entropy=0.001), model_dir, world)
    rng = np.random.default_rng(0)
    rewards = []
    for version in range(25):
        distribution = next_token_logprobs(trainer, prompt := np.array([1, 2, 3], np.int32))
        groups = []
        for g in range(4):
            tokens = rng.choice(len(distribution), 8, p=np.exp(distribution) / np.exp(distribution).sum())
            group = TrainGroup(g, "task")
            for member, token in enumerate(tokens):
                record = TokenRecord(
                    np.append(prompt, token).astype(np.int32),
                    np.array([0, 0, 0, distribution[token]], np.float32),
                    np.array([-1, -1, -1, version], np.int32),
                )
                group.samples.append(Sample(f"{g}.{member}", g, "task", record, float(token < 8)))
            groups.append(group)
        trainer.accumulate(groups)
        metrics = trainer.step().metrics
        rewards.append(metrics["reward_mean"])
        assert metrics["logprob_gap_max"] < 1e-5
    assert np.mean(rewards[:3]) < 0.4
    assert np.mean(rewards[-3:]) > 0.9


def next_token_logprobs(trainer: FsdpTrainer, prompt: np.ndarray) -> np.ndarray:
    records = [
        TokenRecord(
            np.append(prompt, token).astype(np.int32), np.zeros(4, np.float32), np.array([-1, -1, -1, 0], np.int32)
        )
        for token in range(64)
    ]
    return np.array([logprobs[-1] for logprobs in trainer.logprobs(records)], np.float64)


def test_a_directory_without_a_model_is_a_clear_error(tmp_path: Path, world: World) -> None:
    with pytest.raises(SiteError, match="can't train"):
        FsdpTrainer(make_config(), tmp_path, world)
