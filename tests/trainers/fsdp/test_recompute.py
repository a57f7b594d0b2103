"""Activation checkpointing changes memory, not results."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from rollart_hpc.trainers.fsdp.trainer import FsdpTrainer
from rollart_hpc.trainers.world import World
from tests.trainers.fsdp.test_trainer import gradients
from tests.trainers.plain import PlainTrainer, make_config, make_groups, make_model


@pytest.mark.parametrize("changes", [{}, {"trainer__lora__rank": 2}], ids=["all weights", "lora"])
def test_gradients_with_checkpointing_equal_those_without(
    changes: dict[str, object], model_dir: Path, world: World
) -> None:
    plain = FsdpTrainer(make_config(**changes), model_dir, world)
    again = FsdpTrainer(make_config(trainer__activation_checkpointing=True, **changes), model_dir, world)
    for seed in range(2):
        for trainer in (plain, again):
            trainer.accumulate(make_groups(seed))
        expected, got = gradients(plain), gradients(again)
        assert expected.keys() == got.keys() and expected
        for name, gradient in expected.items():
            assert torch.equal(gradient, got[name]), name
        assert plain.step().digest == again.step().digest


def test_blocks_run_again_in_backward(model_dir: Path, world: World) -> None:
    trainer = FsdpTrainer(make_config(trainer__activation_checkpointing=True), model_dir, world)
    calls = []
    trainer._model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    samples = make_groups(0)[0].samples
    trainer._forward_backward([trainer._pack(samples, [1.0] * len(samples))])
    assert len(calls) == 2


@pytest.mark.parametrize("family", [LlamaConfig, Qwen2Config, Qwen3Config], ids=lambda family: family.model_type)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_every_family_trains_as_plainly_written(
    family: type[PretrainedConfig], tied: bool, tmp_path: Path, world: World
) -> None:
    directory = make_model(tmp_path / "model", family=family, tied=tied)
    config = make_config(trainer__activation_checkpointing=True)
    plain, trainer = PlainTrainer(config, directory), FsdpTrainer(config, directory, world)
    for seed in range(2):
        expected = plain.step(make_groups(seed))
        trainer.accumulate(make_groups(seed))
        assert trainer.step().metrics["loss"] == pytest.approx(expected, abs=1e-5)
    exported = dict(trainer.export())
    assert ("lm_head.weight" in exported) != tied
    for name, tensor in exported.items():
        torch.testing.assert_close(tensor, plain.model.state_dict()[name], atol=2e-5, rtol=1e-4)
