"""Every rank reads its own part of a model: the weights that transformers loads, in no more memory than they need."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, LlamaConfig

from rollart_hpc.errors import SiteError
from rollart_hpc.trainers.fsdp import loading as package
from rollart_hpc.trainers.fsdp.trainer import FsdpTrainer
from rollart_hpc.trainers.world import World
from tests.processes import server
from tests.trainers.fsdp.loading import main, whole
from tests.trainers.plain import make_config, make_model

ADAPTERS = {"trainer__lora__rank": 3, "trainer__activation_checkpointing": True}
RANKS = 4


def run(
    ranks: int, tmp_path: Path, main: Callable[[dict[str, Any], int], None] = main, **job: Any
) -> list[dict[str, Any]]:
    job |= {"ranks": ranks, "out": str(tmp_path / "out"), "rendezvous": str(tmp_path / "rendezvous")}
    processes = [server.Process(target=main, args=(job, rank)) for rank in range(ranks)]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
    finally:
        for process in processes:
            process.kill()
    return [json.loads(Path(f"{job['out']}.{rank}.json").read_text()) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("tied", "config"),
    [(True, {}), (False, {"trainer__dtype": "bfloat16"}), (True, ADAPTERS), (False, ADAPTERS)],
    ids=["tied", "untied", "tied adapters", "untied adapters"],
)
def test_shards_have_the_weights_that_transformers_loads(tied: bool, config: dict[str, Any], tmp_path: Path) -> None:
    """Uneven shards: some rows are in no rank's part, some ranks have none."""
    directory = make_model(tmp_path / "m", family=LlamaConfig, tied=tied, vocab_size=61, intermediate_size=50)
    found = run(3, tmp_path, model=str(directory), warm_up=str(directory), config=config, compares=True)
    assert all(one["differ"] == one["left_on_meta"] == [] for one in found)


def test_a_rank_grows_by_its_part_and_one_tensor(tmp_path: Path) -> None:
    size = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 10, "vocab_size": 4096}
    directory = make_model(tmp_path / "large", **size)
    tensors = load_file(directory / "model.safetensors")
    total, largest = sum(t.nbytes for t in tensors.values()), max(t.nbytes for t in tensors.values())
    assert total > 100 << 20
    found = run(RANKS, tmp_path, model=str(directory), warm_up=str(make_model(tmp_path / "small")))
    limit = 1.2 * total / RANKS + largest
    assert all(total / RANKS * 0.9 < one["grown"] <= limit for one in found), (found, limit)


@pytest.mark.parametrize("tied", [True, False])
def test_one_rank_has_the_same_weights_and_buffers(tied: bool, tmp_path: Path, world: World) -> None:
    directory = make_model(tmp_path / "m", tied=tied)
    ours, theirs = FsdpTrainer(make_config(), directory, world)._model, whole(directory)
    for a, b in ((ours.named_parameters(), theirs.named_parameters()), (ours.named_buffers(), theirs.named_buffers())):
        for (name, one), (other, expected) in zip(a, b, strict=True):
            assert name == other and torch.equal(one, expected)
    assert (ours.lm_head.weight is ours.model.embed_tokens.weight) is tied


def test_weights_in_several_files_and_in_bfloat16(tmp_path: Path, world: World) -> None:
    directory = make_model(tmp_path / "m")
    model = whole(directory).bfloat16()
    model.save_pretrained(directory, max_shard_size="20KB")
    assert len(list(directory.glob("model-*.safetensors"))) > 1
    (directory / "model.safetensors").unlink()
    for name, tensor in FsdpTrainer(make_config(), directory, world).export():
        assert torch.equal(tensor, model.state_dict()[name].float()), name


@pytest.mark.parametrize("change", ["tied and stored", "another name"])
def test_files_with_other_names_are_loaded_by_transformers(
    change: str, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = make_model(tmp_path / "m")
    tensors = load_file(directory / "model.safetensors")
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    if change == "another name":
        tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    else:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    monkeypatch.setattr(package, "fill", None)  # it is not asked
    model = package.blank(directory)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in model.named_parameters())


def test_values_that_no_file_has_are_made_by_the_model(tmp_path: Path) -> None:
    """A blank GPT-2 has its causal masks, a blank Llama its frequencies."""
    for family in (LlamaConfig, GPT2Config):
        directory = tmp_path / family.__name__
        if family is GPT2Config:
            from transformers import AutoModelForCausalLM

            shape = GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=64)
            AutoModelForCausalLM.from_config(shape).save_pretrained(directory)
        else:
            make_model(directory, family=family)
        expected = dict(whole(directory).named_buffers())
        blank = package.blank(directory)
        assert all(torch.equal(buffer, expected[name]) for name, buffer in blank.named_buffers())
        assert {parameter.device.type for parameter in blank.parameters()} == {"meta"}


def test_a_damaged_file_is_a_clear_error(tmp_path: Path, world: World) -> None:
    directory = make_model(tmp_path / "m")
    (directory / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(SiteError, match=r"model\.safetensors: .*header"):
        FsdpTrainer(make_config(), directory, world)
