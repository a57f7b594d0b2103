"""Names, shapes and refusals of the trainer `megatron`, without megatron."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, Qwen3Config

from rollart_hpc.errors import SiteError
from rollart_hpc.trainers.megatron.families import read_family
from rollart_hpc.trainers.megatron.layout import Shape, weights
from tests.trainers.plain import make_model


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model") / "qwen3", family=Qwen3Config, vocab_size=61)


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize("pipeline", [1, 2])
@pytest.mark.parametrize("fused", [False, True])
def test_joining_and_splitting_is_undone_exactly(directory: Path, tensor: int, pipeline: int, fused: bool) -> None:
    table = list(weights(read_family(directory), Shape(tensor, pipeline, 64, fused)))
    seen: list[str] = []
    for weight in table:
        columns = () if weight.columns is None else (weight.columns,)
        sources = [torch.randn(rows, *columns) for rows in weight.rows]
        joined = weight.join(sources)
        shards = [weight.shard(joined, rank, tensor) for rank in range(tensor)]
        assert tuple(joined.shape) == weight.joined_shape
        assert {tuple(shard.shape) for shard in shards} == {weight.shard_shape(tensor)}
        whole = shards[0] if weight.split is None else torch.cat(shards, dim=weight.split)
        for (name, got), source in zip(weight.part(whole), sources, strict=True):
            assert torch.equal(got, source)
            seen += [name] * (not weight.is_copy)
    assert len(seen) == len(set(seen))
    assert len({(weight.stage, weight.name) for weight in table}) == len(table)
    assert {weight.stage for weight in table} == set(range(pipeline))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "gemma2"}, "it is of type gemma2"),
        ({"attention_bias": True}, "its attention has biases"),
        ({"mlp_bias": True, "hidden_act": "gelu"}, "its MLP has biases and its activation is not silu"),
        ({"use_sliding_window": True}, "sliding windows"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "its positions are of type yarn"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(
    changes: dict[str, object], reason: str, directory: Path, tmp_path: Path
) -> None:
    config = json.loads((directory / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(SiteError, match=reason) as caught:
        read_family(tmp_path)
    assert "trainer.kind: fsdp supports more" in str(caught.value)


def test_a_directory_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(SiteError, match=r"can't train .*: it has no config\.json"):
        read_family(tmp_path)


def test_older_configs_name_their_positions_otherwise(tmp_path: Path) -> None:
    make_model(tmp_path, family=LlamaConfig, tied=False)
    config = json.loads((tmp_path / "config.json").read_text())
    config.pop("rope_parameters", None)
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_theta": 500000.0, "rope_scaling": None}))
    family = read_family(tmp_path)
    assert (family.rope_theta, family.rope_scaling, family.is_tied) == (500000.0, None, False)
