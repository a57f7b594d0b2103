"""Several ranks as real processes over gloo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.processes import server
from tests.trainers.fsdp.rank import main
from tests.trainers.plain import learned


def run(ranks: int, tmp_path: Path, name: str, **job: Any) -> list[dict[str, Any]]:
    """What each rank reports; {} of one that did not end well."""
    job |= {"ranks": ranks, "out": str(tmp_path / name), "rendezvous": str(tmp_path / f"{name}.rendezvous")}
    processes = [server.Process(target=main, args=(job, rank)) for rank in range(ranks)]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
    finally:
        for process in processes:
            process.kill()
    results = [Path(f"{job['out']}.{rank}.json") for rank in range(ranks)]
    return [json.loads(path.read_text()) if path.exists() else {} for path in results]


def weights(tmp_path: Path, name: str, rank: int = 0) -> dict[str, torch.Tensor]:
    return torch.load(tmp_path / f"{name}.{rank}.pt")


UPDATES = {"algorithm__updates": 2, "algorithm__epochs": 2, "algorithm__decoupled": True}
ADAPTERS = {"trainer__lora__rank": 3, "trainer__activation_checkpointing": True, "algorithm__kl": 0.1}


@pytest.mark.parametrize(
    "config", [{}, {"algorithm__aggregation": "sample_mean", "algorithm__kl": 0.1}, UPDATES, ADAPTERS]
)
def test_two_ranks_equal_one(config: dict[str, Any], model_dir: Path, tmp_path: Path) -> None:
    job = {"model": str(model_dir), "steps": 3, "chunks": [1, 3, 1], "config": config}
    (one,) = run(1, tmp_path, "one", **job)
    first, second = run(2, tmp_path, "two", **job)
    assert first["said"] == second["said"] == ["hello", "", "there"]
    assert first["digest"] == second["digest"]
    assert first["metrics"] == second["metrics"]
    assert all(0 < step["packing_efficiency"] <= 1 for step in first["metrics"])
    assert all(step["packing_efficiency"] == 1 for step in one["metrics"]), "one rank waits for nobody"
    for a, b in zip(one["metrics"], first["metrics"], strict=True):
        assert learned(a) == pytest.approx(learned(b), rel=1e-4, abs=1e-5)
    for name, tensor in weights(tmp_path, "one").items():
        torch.testing.assert_close(tensor, weights(tmp_path, "two")[name], atol=2e-5, rtol=1e-4)


SHARED = {"trainer__options__shard_ranks": 2}
ON_HOST = {"trainer__options__cpu_offload": True}


@pytest.mark.parametrize(("ranks", "config"), [(4, SHARED), (2, ON_HOST), (4, SHARED | ON_HOST | ADAPTERS)])
def test_copies_of_the_weights_and_state_on_the_host(
    ranks: int, config: dict[str, Any], model_dir: Path, tmp_path: Path
) -> None:
    """Two ranks share a copy, and two copies stay equal; also through a checkpoint."""
    job = {"model": str(model_dir), "chunks": [5]}
    same = {key: value for key, value in config.items() if "options" not in key}
    (one,) = run(1, tmp_path, "one", **job, steps=3, config=same)
    run(ranks, tmp_path, "saved", **job, steps=2, config=config, save=str(tmp_path / "ckpt"))
    found = run(ranks, tmp_path, "many", **job, steps=1, config=config, load=str(tmp_path / "ckpt"))
    assert {rank["digest"] for rank in found} == {found[0]["digest"]}
    assert learned(found[0]["metrics"][0]) == pytest.approx(learned(one["metrics"][2]), rel=1e-4, abs=1e-5)
    for name, tensor in weights(tmp_path, "one").items():
        torch.testing.assert_close(tensor, weights(tmp_path, "many")[name], atol=2e-5, rtol=1e-4)


def test_deterministic_ranks_do_not_depend_on_chunks(model_dir: Path, tmp_path: Path) -> None:
    job = {"model": str(model_dir), "steps": 2, "config": {"deterministic": True}}
    whole = run(2, tmp_path, "whole", chunks=[5], **job)
    cut = run(2, tmp_path, "cut", chunks=[1, 1, 2, 1], **job)
    assert whole == cut
    assert whole[0]["digest"] == whole[1]["digest"]


def test_a_checkpoint_of_two_ranks_is_loaded_by_three(model_dir: Path, tmp_path: Path) -> None:
    job = {"model": str(model_dir), "chunks": [5]}
    saved = run(2, tmp_path, "saved", steps=2, save=str(tmp_path / "ckpt"), **job)
    loaded = run(3, tmp_path, "loaded", load=str(tmp_path / "ckpt"), **job)
    assert {r["digest"] for r in loaded} == {saved[0]["digest"]}
    assert {r["version"] for r in loaded} == {2}
    gone_on = run(2, tmp_path, "gone_on", steps=1, load=str(tmp_path / "ckpt"), **job)
    straight = run(2, tmp_path, "straight", steps=3, **job)
    assert gone_on[0]["digest"] == straight[0]["digest"]


def test_a_checkpoint_of_two_ranks_is_loaded_by_one_and_the_other_way_round(model_dir: Path, tmp_path: Path) -> None:
    """One rank alone holds whole tensors, two hold shards."""
    first, second = tmp_path / "first", tmp_path / "second"
    job = {"model": str(model_dir), "chunks": [5], "steps": 1}
    run(2, tmp_path, "two", save=str(first), **job)
    (one,) = run(1, tmp_path, "one", load=str(first), save=str(second), **job)
    straight = run(2, tmp_path, "straight", **job | {"steps": 3})
    back = run(2, tmp_path, "back", load=str(second), **job)
    assert (one["version"], back[0]["version"]) == (2, 3)
    for a, b in zip(one["metrics"] + back[0]["metrics"], straight[0]["metrics"][1:], strict=True):
        assert learned(a) == pytest.approx(learned(b), rel=1e-4, abs=1e-5)
    for name, tensor in weights(tmp_path, "straight").items():
        torch.testing.assert_close(tensor, weights(tmp_path, "back")[name], atol=2e-5, rtol=1e-4)


def test_all_ranks_refuse_a_checkpoint_that_one_finds_damaged(model_dir: Path, tmp_path: Path) -> None:
    job = {"model": str(model_dir), "chunks": [5]}
    run(2, tmp_path, "saved", steps=1, save=str(tmp_path / "ckpt"), **job)
    shard = next((tmp_path / "ckpt").glob("__1_*.distcp"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    errors = [result["error"] for result in run(2, tmp_path, "loaded", load=str(tmp_path / "ckpt"), **job)]
    assert any("damaged" in error for error in errors)
    assert len(errors) == 2


def test_the_other_ranks_end_when_one_dies(model_dir: Path, tmp_path: Path) -> None:
    results = run(3, tmp_path, "dies", model=str(model_dir), steps=1, chunks=[5], dies=1)
    assert results[1] == {}
    assert all("another trainer rank died" in results[rank]["error"] for rank in (0, 2))
