"""Sizes of processes from the size of the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollart_hpc.config.load import load, load_site
from rollart_hpc.config.schema import EngineConfig, PoolConfig, RunConfig, TrainerConfig
from rollart_hpc.launch.packing import Needs
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.sizes import (
    controller_needs,
    engine_needs,
    find_shortfalls,
    relay_needs,
    trainer_needs,
)


def config(parameters_b: float, ranks: int = 8) -> RunConfig:
    found = RunConfig(trainer=TrainerConfig(ranks=ranks, dtype="bfloat16"), engine=EngineConfig(dtype="bfloat16"))
    found.model.parameters_b = parameters_b
    return found


def test_a_tiny_model_needs_little() -> None:
    for tiny in (config(0.0), config(0.001)):
        assert (controller_needs(tiny), trainer_needs(tiny, 1)) == (Needs(1, 0, 1.0), Needs(1, 1, 2.0))
        assert (engine_needs(tiny, "compute", 1), relay_needs(tiny)) == (Needs(1, 1, 2.0), Needs(1, 0, 1.0))


def test_a_model_of_8b() -> None:
    large = config(8.2)
    assert relay_needs(large) == Needs(2, 0, 1.0 + 46), "three versions of 15.3 GB"
    assert trainer_needs(large, 1) == Needs(4, 1, 2.0 + 16), "an eighth of 16 bytes per parameter"
    assert engine_needs(large, "compute", 2) == Needs(4, 2, 16.0)
    assert engine_needs(large, "compute", 0).memory_gb == 2.0 + 20
    assert controller_needs(large) == Needs(4, 0, 8.0)


@pytest.mark.parametrize("role", ["trainer", "engine", "weights", "controller"])
def test_what_is_set_wins_and_what_is_too_little_is_told(role: str) -> None:
    large = config(8.2)
    section = getattr(large, role)
    section.cpus, section.memory_gb = 1, 0.5
    needs = {
        "trainer": trainer_needs(large, 1),
        "engine": engine_needs(large, "compute", 1),
        "weights": relay_needs(large),
        "controller": controller_needs(large),
    }[role]
    assert (needs.cpus, needs.memory_gb) == (1, 0.5)
    told = list(find_shortfalls(large, {"compute": 1}))
    assert [line.split(":")[0] for line in told] == [f"{role}.memory_gb", f"{role}.cpus"]
    section.cpus, section.memory_gb = 99, 999.0
    assert list(find_shortfalls(large, {"compute": 1})) == []


def test_adapters_need_no_averages_of_all_weights() -> None:
    large = config(8.2)
    large.trainer.lora.rank = 8
    assert trainer_needs(large, 1).memory_gb == 2.0 + 4


def test_a_pool_has_sizes_of_its_own() -> None:
    large = config(8.2)
    large.pools = {"fast": PoolConfig(engine={"memory_gb": 3, "cpus": 7}), "wide": PoolConfig()}
    assert engine_needs(large, "fast", 1) == Needs(7, 1, 3) and engine_needs(large, "wide", 1) == Needs(3, 1, 8.0)
    (told,) = find_shortfalls(large, {"fast": 1, "wide": 1})
    assert told.startswith("pools.fast.engine.memory_gb: 3 is less than the 8 GB")


def test_a_plan_for_a_model_directory(tmp_path: Path) -> None:
    shapes = {"hidden_size": 2048, "num_hidden_layers": 28, "num_attention_heads": 16, "vocab_size": 151936}
    (tmp_path / "config.json").write_text(json.dumps(shapes))
    (tmp_path / "tokenizer.json").write_text("{}")
    model = ["model.kind=directory", f"model.path={tmp_path}", "trainer.dtype=bfloat16"]
    plan = make_plan(load("quickstart", model), load_site("dev"))
    assert {p.needs for p in plan.of("relay")} == {Needs(2, 0, 15.0)} and plan.warnings == ()
    plan = make_plan(load("quickstart", [*model, "weights.memory_gb=2"]), load_site("dev"))
    assert plan.warnings[0].startswith("weights.memory_gb: 2 is less than the 15 GB that a model of 2.5 billion")
