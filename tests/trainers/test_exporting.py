"""A model directory from a trainer, read back by plain transformers, peft and the torch engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from transformers import AutoModelForCausalLM

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import DamagedError, UserError
from rollart_hpc.trainers.exporting import SHARD_BYTES, alone, write_adapters, write_model
from rollart_hpc.trainers.fsdp.trainer import FsdpTrainer
from rollart_hpc.trainers.world import World
from rollart_hpc.types import TokenRecord
from tests.trainers.plain import PlainTrainer, make_config, make_groups, make_record

LORA = {"trainer__lora__rank": 4, "trainer__lora__alpha": 8.0, "trainer__lr": 5e-3}
RECORDS = [make_record(np.random.default_rng(seed), 20 + seed) for seed in range(3)]


def trained(model_dir: Path, world: World, **changes: object) -> tuple[FsdpTrainer, RunConfig]:
    config = make_config(**{"trainer__lr": 5e-3} | changes)
    trainer = FsdpTrainer(config, model_dir, world)
    trainer.accumulate(make_groups(0))
    trainer.step()
    return trainer, config


def agree(trainer: FsdpTrainer, model: torch.nn.Module) -> None:
    """Log-probs of sampled tokens under both."""
    for record, own in zip(RECORDS, trainer.logprobs(RECORDS), strict=True):
        np.testing.assert_allclose(theirs(model, record), own[record.sampled], atol=1e-4, rtol=0)


def theirs(model: torch.nn.Module, record: TokenRecord) -> np.ndarray:
    ids = torch.from_numpy(record.ids.astype(np.int64))
    with torch.no_grad():
        rows = torch.log_softmax(model(ids[None]).logits[0, :-1], -1)
    return np.append(0.0, rows.gather(1, ids[1:, None])[:, 0].numpy())[record.sampled]


@pytest.mark.parametrize("shard_bytes", [SHARD_BYTES, 10_000])
def test_transformers_loads_a_tied_model(shard_bytes: int, model_dir: Path, world: World, tmp_path: Path) -> None:
    base = shutil.copytree(model_dir, tmp_path / "base")
    (base / "chat_template.jinja").write_text("hello")
    (made := tmp_path / "made").mkdir()
    trainer, config = trained(model_dir, world)
    written = write_model(trainer, config, base, made, shard_bytes)
    assert written.digest == trainer.digest
    shards = sorted(path.name for path in made.glob("*.safetensors"))
    assert not list(made.glob("*.tmp"))
    assert written.num_bytes < sum((made / name).stat().st_size for name in shards) < written.num_bytes + 20_000
    if shard_bytes == SHARD_BYTES:
        assert shards == ["model.safetensors"]
    else:
        index = json.loads((made / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == written.num_bytes and set(index["weight_map"].values()) == set(shards)
        assert shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    model = AutoModelForCausalLM.from_pretrained(made)
    assert model.dtype == torch.float32 and (made / "chat_template.jinja").read_text() == "hello"
    agree(trainer, model)
    with pytest.raises(AssertionError):  # training has changed something
        agree(trainer, AutoModelForCausalLM.from_pretrained(model_dir))


def test_an_untied_model(untied_dir: Path, world: World, tmp_path: Path) -> None:
    trainer, config = trained(untied_dir, world)
    write_model(trainer, config, untied_dir, tmp_path, SHARD_BYTES)
    agree(trainer, PlainTrainer(config, tmp_path).model)


def test_adapters_merged_and_alone(model_dir: Path, world: World, tmp_path: Path) -> None:
    trainer, config = trained(model_dir, world, **LORA)
    for name in ("merged", "alone"):
        (tmp_path / name).mkdir()
    write_model(trainer, config, model_dir, tmp_path / "merged", SHARD_BYTES)
    agree(trainer, AutoModelForCausalLM.from_pretrained(tmp_path / "merged"))
    written = write_adapters(trainer, config, tmp_path / "alone")
    assert written.num_bytes < sum(path.stat().st_size for path in (tmp_path / "merged").glob("*.safetensors"))
    base = AutoModelForCausalLM.from_pretrained(model_dir)
    agree(trainer, peft.PeftModel.from_pretrained(base, tmp_path / "alone"))


def test_a_run_without_adapters(model_dir: Path, world: World, tmp_path: Path) -> None:
    trainer, config = trained(model_dir, world)
    with pytest.raises(UserError, match="no adapters"):
        write_adapters(trainer, config, tmp_path)


def test_what_differs_from_the_trainer_is_not_called_good(model_dir: Path, world: World, tmp_path: Path) -> None:
    trainer, config = trained(model_dir, world)
    trainer.digest = "other"
    with pytest.raises(DamagedError):
        write_model(trainer, config, model_dir, tmp_path, SHARD_BYTES)


def test_one_rank_holds_the_whole_model() -> None:
    sizes = {"tensor_parallel": 4, "pipeline_parallel": 2, "vocabulary_multiple": 8}
    config = make_config(trainer__kind="megatron", trainer__ranks=8, trainer__options=sizes, algorithm__kl=0.1)
    found = alone(config)
    assert found.trainer.options == {"tensor_parallel": 1, "pipeline_parallel": 1, "vocabulary_multiple": 8}
    assert (found.trainer.ranks, found.trainer.device, found.algorithm.kl) == (1, "cpu", 0.0)
