from __future__ import annotations

from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from transformers import AutoModelForCausalLM

from rollart_hpc.errors import UserError
from rollart_hpc.trainers.fsdp.lora import full_tensor, is_adapter
from rollart_hpc.trainers.fsdp.trainer import FsdpTrainer
from rollart_hpc.trainers.world import World
from tests.trainers.plain import make_config, make_groups, make_model, make_record

LORA = {"trainer__lora__rank": 4, "trainer__lora__alpha": 8.0, "trainer__lr": 5e-3}


def trained(model_dir: Path, world: World, steps: int = 2, **changes: object) -> FsdpTrainer:
    trainer = FsdpTrainer(make_config(**LORA | changes), model_dir, world)
    for seed in range(steps):
        trainer.accumulate(make_groups(seed))
        trainer.step()
    return trainer


def weights(trainer: FsdpTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.export()}


def adapters(trainer: FsdpTrainer) -> dict[str, torch.Tensor]:
    return {name: full_tensor(p) for name, p in trainer._model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("targets", ["all-linear", "q_proj, down_proj"])
def test_the_export_equals_the_merge_of_peft(targets: str, model_dir: Path, world: World) -> None:
    trainer = trained(model_dir, world, trainer__lora__targets=targets)
    theirs = AutoModelForCausalLM.from_pretrained(model_dir)
    names = {name.split(".")[-4] for name in adapters(trainer)}
    assert len(names) == (7 if targets == "all-linear" else 2)
    theirs = peft.get_peft_model(theirs, peft.LoraConfig(r=4, lora_alpha=8, target_modules=list(names)))
    theirs.load_state_dict({f"base_model.model.{k}": v for k, v in adapters(trainer).items()}, strict=False)
    expected = theirs.merge_and_unload().state_dict()
    got = weights(trainer)
    assert got.keys() == {name for name in expected if name != "lm_head.weight"}  # tied: once
    for name, tensor in got.items():
        torch.testing.assert_close(tensor, expected[name], atol=1e-7, rtol=0)


def test_fresh_adapters_change_nothing_and_training_changes_adapters_only(model_dir: Path, world: World) -> None:
    trainer = FsdpTrainer(make_config(**LORA), model_dir, world)
    base = FsdpTrainer(make_config(), model_dir, world)
    assert trainer.digest == base.digest
    frozen = {n: full_tensor(p).clone() for n, p in trainer._model.named_parameters() if not p.requires_grad}
    trainer.accumulate(make_groups(0))
    result = trainer.step()
    assert result.digest != result.parent_digest and result.metrics["grad_norm"] > 0
    for name, parameter in trainer._model.named_parameters():
        assert is_adapter(name) == parameter.requires_grad
        if not parameter.requires_grad:
            assert torch.equal(full_tensor(parameter), frozen[name])


def test_exported_weights_give_the_log_probs_of_the_trainer(model_dir: Path, world: World, tmp_path: Path) -> None:
    trainer = trained(model_dir, world)
    records = [make_record(np.random.default_rng(seed), 20) for seed in range(3)]
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    model.load_state_dict(weights(trainer), strict=False)
    model.save_pretrained(tmp_path)
    merged = FsdpTrainer(make_config(), tmp_path, world)
    for ours, theirs in zip(trainer.logprobs(records), merged.logprobs(records), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_the_reference_is_the_model_without_its_adapters(model_dir: Path, world: World) -> None:
    trainer = trained(model_dir, world, steps=3, algorithm__kl=0.1)
    trainer.accumulate(make_groups(9))
    kl = trainer.step().metrics["kl_reference"]
    before = trained(model_dir, world, steps=0, algorithm__kl=0.1)
    before.accumulate(make_groups(9))
    assert kl > 0 and before.step().metrics["kl_reference"] == pytest.approx(0, abs=1e-6)
    samples = [sample for group in make_groups(9) for sample in group.samples]
    micro = trainer._pack(samples, [1.0] * len(samples))
    base = FsdpTrainer(make_config(), model_dir, world)
    torch.testing.assert_close(trainer._reference_logprobs(micro), base._chosen_of(base._model, micro))


def test_a_checkpoint_holds_adapters_and_optimizer_and_goes_on_from_there(
    model_dir: Path, world: World, tmp_path: Path
) -> None:
    one = trained(model_dir, world)
    one.save(tmp_path / "lora")
    held = FileSystemReader(tmp_path / "lora").read_metadata().state_dict_metadata
    assert all(is_adapter(name) or name.startswith("optimizer.param_groups") for name in held)
    assert {name.removeprefix("model.") for name in held if name.startswith("model.")} >= set(adapters(one))
    two = FsdpTrainer(make_config(**LORA), model_dir, world)
    two.load(tmp_path / "lora")
    assert (two.version, two.digest) == (2, one.digest)
    for trainer in (one, two):
        trainer.accumulate(make_groups(5))
    assert one.step().digest == two.step().digest


def test_it_learns(tmp_path: Path, world: World) -> None:
    """Answers made of one token are rewarded, others are not: the token becomes likely."""
    directory = make_model(tmp_path / "model", initializer_range=0.3)
    trainer = FsdpTrainer(make_config(**LORA | {"trainer__lr": 2e-2}), directory, world)
    chances = []
    for step in range(12):
        groups = make_groups(step, num_groups=2)
        samples = [sample for group in groups for sample in group.samples]
        for sample in samples:
            sample.reward = float(sample.trajectory.endswith(".0"))
            if sample.reward:
                sample.record.ids[sample.record.sampled] = 3
        for sample, logprobs in zip(samples, trainer.logprobs([s.record for s in samples]), strict=True):
            sample.record.logprobs[:] = logprobs
        chances.append(np.mean([np.exp(s.record.logprobs[s.record.sampled]).mean() for s in samples if s.reward]))
        trainer.accumulate(groups)
        trainer.step()
    assert chances[-1] > 5 * chances[0]


def test_targets_that_do_not_exist_are_the_users_mistake(model_dir: Path, world: World) -> None:
    for targets in ("query", "lm_head", "embed_tokens"):
        with pytest.raises(UserError, match=r"trainer\.lora\.targets"):
            trained(model_dir, world, steps=0, trainer__lora__targets=targets)
