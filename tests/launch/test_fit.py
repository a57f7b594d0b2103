"""What does not fit is refused before it is submitted, with what would fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.config.load import load, load_site
from rollart_hpc.config.model_shape import read_shape, shape_of
from rollart_hpc.errors import ConfigError
from rollart_hpc.launch.fit import GB, Fit, Row, fit_data, fit_of
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.summary import fit_lines

QWEN_8B = {
    "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
}  # fmt: skip
QWEN_32B = QWEN_8B | {"hidden_size": 5120, "intermediate_size": 25600, "num_hidden_layers": 64} | {
    "num_attention_heads": 64
}  # fmt: skip


def fit(directory: Path, run: str = "qwen3-8b-h800-h20", *changes: str, **settings: Any) -> Fit:
    (directory / "config.json").write_text(json.dumps((QWEN_32B if "32b" in run else QWEN_8B) | settings))
    (directory / "tokenizer.json").write_text("{}")
    config = load(run, [f"model.path={directory}", *changes])
    site = load_site("h800-h20")
    return fit_of(config, site, make_plan(config, site))


def row(found: Fit, who: str, where: str = "GPU") -> Row:
    return next(row for row in found.rows if (row.who, row.where) == (who, where))


def problem(found: Fit) -> str:
    with pytest.raises(ConfigError) as raised:
        found.need("run x")
    return str(raised.value)


@pytest.mark.parametrize("run", ["qwen3-8b-h800-h20", "qwen3-32b-h800-h20"])
def test_shipped_plans_fit_with_a_fifth_to_spare(run: str, tmp_path: Path) -> None:
    found = fit(tmp_path, run)
    found.need("run x")
    assert found.unknown == "" and found.warnings == ()
    trainer = row(found, "trainer rank")
    assert trainer.needs < 0.8 * trainer.has == 0.8 * 80 * GB
    assert "trajectories of 32768" in row(found, "engine of bandwidth").note
    assert row(found, "relay", "/dev/shm").needs == pytest.approx(3 * 2 * (32.8e9 if "32b" in run else 8.2e9), rel=0.01)
    assert {r.hardware for r in found.rows if r.where == "host"} == {"cpu", "h800", "h20"}


def test_a_trainer_that_does_not_fit_is_told_what_would(tmp_path: Path) -> None:
    told = problem(fit(tmp_path, "qwen3-8b-h800-h20", "trainer.activation_checkpointing=false"))
    assert "trainer: a GPU of class h800 has 80 GB" in told and "activations" in told
    assert "trainer.activation_checkpointing=true" in told and "trainer.microbatch_tokens=8192" in told
    told = problem(fit(tmp_path, "qwen3-32b-h800-h20", "trainer.ranks=8"))
    assert "trainer.ranks=32" in told and "trainer.lora.rank=32" in told


def test_what_is_advised_fits(tmp_path: Path) -> None:
    fit(tmp_path, "qwen3-32b-h800-h20", "trainer.ranks=8", "trainer.lora.rank=32").need("run x")


def test_an_engine_that_does_not_fit_is_told_what_would(tmp_path: Path) -> None:
    narrow = ("pools.compute.tensor_parallel=1", "pools.bandwidth.tensor_parallel=1", "engine.dtype=float32")
    told = problem(fit(tmp_path, "qwen3-32b-h800-h20", *narrow, "pools.compute.engines=8"))
    assert "pools.compute: a GPU of class h800 has 80 GB, of which 68.0 GB can be used" in told
    assert "pools.bandwidth.tensor_parallel=2" in told, "of an H20"
    assert "pools.compute.tensor_parallel=4" in told


def test_an_engine_that_keeps_slots_of_its_own(tmp_path: Path) -> None:
    """Kind torch does not fill a share of the GPU."""
    fit(tmp_path)
    config, site = load("qwen3-8b-h800-h20", [f"model.path={tmp_path}"]), load_site("h800-h20")
    config.engine.kind, config.engine.options = "torch", {}
    assert "engine.kv_slots=8" in problem(fit_of(config, site, make_plan(config, site)))
    config.engine.kv_slots = 8
    fit_of(config, site, make_plan(config, site)).need("run x")


def test_megatron_divides_the_model(tmp_path: Path) -> None:
    def needs(*sizes: str) -> float:
        options = ("trainer.kind=megatron", "trainer.ranks=32", *(f"trainer.options.{size}" for size in sizes))
        return row(fit(tmp_path, "qwen3-32b-h800-h20", *options), "trainer rank").parts["weights"]

    assert needs() == pytest.approx(2 * 32.8e9, rel=0.01)
    assert needs("tensor_parallel=8") == pytest.approx(needs() / 8)


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    found = fit(tmp_path, num_experts=64)
    assert found.rows == () and "has no config.json of a dense decoder" in found.unknown
    config, site = load("quickstart"), load_site("h800-h20")
    assert "tiny model" in fit_of(config, site, make_plan(config, site)).unknown
    assert fit_of(config, load_site("local"), make_plan(config)) == Fit()


def test_gpus_of_unknown_memory_are_judged_by_nobody(tmp_path: Path) -> None:
    fit(tmp_path)
    config, site = load("qwen3-8b-h800-h20", [f"model.path={tmp_path}"]), load_site("h800-h20")
    config.trainer.activation_checkpointing = False
    site.classes["h800"].gpu = ""
    found = fit_of(config, site, make_plan(config, site))
    found.need("run x")
    assert "GPUs of h800 is unknown: set gpu_memory_gb" in found.unknown
    site.classes["h800"].gpu_memory_gb = 40
    assert "a GPU of class h800 has 40 GB" in problem(fit_of(config, site, make_plan(config, site)))


def test_shared_memory_is_half_of_a_node(tmp_path: Path) -> None:
    fit(tmp_path, "qwen3-32b-h800-h20")
    config, site = load("qwen3-32b-h800-h20", [f"model.path={tmp_path}"]), load_site("h800-h20")
    site.classes["h20"].memory_gb = 350
    (told,) = fit_of(config, site, make_plan(config, site)).warnings
    assert told.startswith("class h20: a relay keeps 183 GB of weights in /dev/shm")


def test_text_and_data(tmp_path: Path) -> None:
    found = fit(tmp_path)
    lines = fit_lines(found)
    assert lines[0].split() == ["memory", "of", "a", "class", "where", "needs", "of", "parts", "in", "GB"]
    assert lines[1].startswith("trainer rank         h800   GPU")
    data = json.loads(json.dumps(fit_data(found)))
    assert data["rows"][0]["parts"].keys() >= {"weights", "gradients", "optimizer", "activations"}


def test_shapes_of_models(tmp_path: Path) -> None:
    shape = shape_of(QWEN_8B)
    assert shape is not None and shape.parameters == pytest.approx(8.19e9, rel=0.001)
    assert shape_of({"text_config": QWEN_8B, "model_type": "other"}) is not None
    assert shape_of({"hidden_size": 8}) is None
    (tmp_path / "config.json").write_text("{")
    assert read_shape(tmp_path) is None and read_shape(tmp_path / "none") is None
