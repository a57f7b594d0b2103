"""The trainer `megatron` against transformers and against `fsdp`, in worlds of several shapes over gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config, Qwen3Config

from rollart_hpc.trainers.fsdp.trainer import FsdpTrainer
from rollart_hpc.trainers.world import World
from tests.trainers.megatron import ranks
from tests.trainers.megatron.ranks import FAMILIES, JUDGED, TRAINING, VOCABULARY, batch, records
from tests.trainers.plain import PlainTrainer, learned, make_config, make_model

pytestmark = pytest.mark.skipif(
    find_spec("megatron") is None, reason="megatron-core is not installed: the trainer megatron is not tested"
)

TENSOR, PIPELINE, MULTIPLE = (f"trainer__options__{key}" for key in
                              ("tensor_parallel", "pipeline_parallel", "vocabulary_multiple"))  # fmt: skip
RECOMPUTE = "trainer__activation_checkpointing"
ALL = ["exports", "trains", "judges", "odd_steps"]
JOBS = [
    {"name": "one", "ranks": 1, "sizes": {MULTIPLE: 8}, "parts": ["places", *ALL]},
    {"name": "pp2", "ranks": 2, "sizes": {PIPELINE: 2, MULTIPLE: 8}, "parts": ALL},
    # All real rows of the vocabulary on the first rank, and a checkpoint whose vocabulary is padded otherwise.
    {"name": "tp2", "ranks": 2, "sizes": {TENSOR: 2, RECOMPUTE: True}, "parts": ALL, "loads": "pp2", "slice": 1000},
    {"name": "dp2", "ranks": 2, "sizes": {MULTIPLE: 1}, "parts": ALL, "loads": "tp2"},
]
NAMES = [job["name"] for job in JOBS]
MODELS: dict[str, tuple[type[PretrainedConfig], bool, dict[str, Any]]] = {
    "qwen3": (Qwen3Config, True, {}),
    "qwen2": (Qwen2Config, True, {}),
    "llama": (
        LlamaConfig, False,
        {"rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
        }},
    ),
}  # fmt: skip


class Found(NamedTuple):
    """What the ranks wrote, rank 0 first."""

    values: list[dict[str, Any]]
    tensors: dict[str, dict[str, torch.Tensor]]

    def same(self, key: str) -> Any:
        """Every rank must have found it, and the same."""
        first, *others = (values[key] for values in self.values)
        assert all(other == first for other in others), key
        return first


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("megatron")
    for name, (family, tied, changes) in MODELS.items():
        make_model(root / name, family=family, tied=tied, vocab_size=VOCABULARY, **changes)
    return root


@pytest.fixture(scope="module")
def worlds(directory: Path) -> dict[str, Found]:
    (directory / "jobs.json").write_text(json.dumps(JOBS))
    done = subprocess.run(
        [sys.executable, "-m", ranks.__name__, str(directory)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = {}
    for job in JOBS:
        values = [json.loads((directory / f"{job['name']}.{rank}.json").read_text()) for rank in range(job["ranks"])]
        errors = [value["error"] for value in values if "error" in value]
        assert not errors, f"{job['name']}: {errors[0]}"
        found[job["name"]] = Found(values, torch.load(directory / f"{job['name']}.0.pt"))
    return found


class Expected(NamedTuple):
    metrics: list[dict[str, float]]
    weights: dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def fsdp(directory: Path, world: World) -> dict[str, Expected]:
    """The same batches, trained by the other backend."""
    expected = {}
    for family in FAMILIES:
        trainer = FsdpTrainer(make_config(**TRAINING), directory / family, world)
        metrics = []
        for seed in range(3):
            trainer.accumulate(batch(seed))
            metrics.append(trainer.step().metrics)
        expected[family] = Expected(metrics, {name: tensor.clone() for name, tensor in trainer.export()})
    return expected


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_go_round_bit_for_bit(family: str, name: str, worlds: dict[str, Found], directory: Path) -> None:
    exported = worlds[name].tensors[family]
    stored = load_file(directory / family / "model.safetensors")
    assert exported.keys() == stored.keys()
    assert all(torch.equal(exported[key], tensor) for key, tensor in stored.items())
    assert worlds[name].same(f"digest {family}") == worlds["one"].same(f"digest {family}")


@pytest.mark.parametrize("family", FAMILIES)
def test_scores_are_those_of_transformers(family: str, worlds: dict[str, Found], directory: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(directory / family, dtype=torch.float32)
    ids = [torch.from_numpy(record.ids.astype(np.int64)) for record in records()]
    with torch.no_grad():
        rows = torch.log_softmax(torch.cat([model(one[None]).logits[0] for one in ids]), -1)
    chosen = rows.gather(1, torch.cat(ids).roll(-1)[:, None])[:, 0]
    expected = torch.stack([chosen, -(rows.exp() * rows).sum(-1)], 1)
    got = worlds["one"].tensors[f"places {family}"][""]
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_logprobs_are_those_of_transformers(family: str, name: str, worlds: dict[str, Found], directory: Path) -> None:
    plain = PlainTrainer(make_config(flow__temperature=0.8), directory / family)
    for record, got in zip(records(), worlds[name].same(f"logprobs {family}"), strict=True):
        rows = plain.logprobs(plain.model, record).detach().numpy()
        expected = np.append(0.0, rows[np.arange(len(record) - 1), record.ids[1:]]) * record.sampled
        np.testing.assert_allclose(got, expected, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("family", FAMILIES)
def test_steps_equal_those_of_fsdp(family: str, name: str, worlds: dict[str, Found], fsdp: dict[str, Expected]) -> None:
    for got, expected in zip(worlds[name].same(f"metrics {family}"), fsdp[family].metrics, strict=True):
        assert learned(got) == pytest.approx(learned(expected), rel=1e-4, abs=1e-4)
    trained = worlds[name].tensors[f"trained {family}"]
    assert trained.keys() == fsdp[family].weights.keys()
    for key, tensor in trained.items():
        torch.testing.assert_close(tensor, fsdp[family].weights[key], atol=1e-4, rtol=1e-3, msg=key)


@pytest.mark.parametrize("name", NAMES)
def test_a_checkpoint_restores_weights_optimizer_and_version(name: str, worlds: dict[str, Found]) -> None:
    saved, loaded = worlds[name].same("resumed")
    assert saved == loaded and saved[0] == 3
    straight, resumed = worlds[name].same("gone on")
    assert straight == resumed


@pytest.mark.parametrize(("name", "writer"), [(job["name"], job["loads"]) for job in JOBS if "loads" in job])
def test_a_checkpoint_of_other_parallel_sizes(name: str, writer: str, worlds: dict[str, Found]) -> None:
    assert worlds[name].same("resharded") == worlds[writer].same("resumed")[0]
    fourth = learned(worlds[writer].same("fourth"))
    assert learned(worlds[name].same("resharded fourth")) == pytest.approx(fourth, rel=1e-4, abs=1e-4)


@pytest.fixture(scope="module")
def judged(directory: Path, world: World) -> list[dict[str, float]]:
    trainer = FsdpTrainer(make_config(**JUDGED), directory / "qwen3", world)
    metrics = []
    for seed in range(4):
        trainer.accumulate(batch(seed))
        metrics.append(trainer.step().metrics)
    return metrics


@pytest.mark.parametrize("name", NAMES)
def test_the_critic_and_the_reference_are_those_of_fsdp_also_from_a_checkpoint(
    name: str, worlds: dict[str, Found], judged: list[dict[str, float]]
) -> None:
    found = worlds[name].same("judged")
    assert [step["lr"] > 0 for step in found[:3]] == [False, True, True]
    # The first step changes nothing. In the others the second update sees what the first one changed.
    assert found[0]["kl_reference"] == pytest.approx(0, abs=1e-6)
    for got, expected in zip(found, [*judged, judged[3]], strict=True):
        assert learned(got) == pytest.approx(learned(expected), rel=1e-3, abs=2e-4)
        assert got["kl_reference"] == pytest.approx(expected["kl_reference"], rel=0.01, abs=1e-6)
    assert found[3]["explained_variance"] != 0 and found[3]["kl_coefficient"] != 0.1
    assert worlds[name].same("without") == [3, 3]


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_checkpoint_is_refused_by_all_ranks(name: str, worlds: dict[str, Found]) -> None:
    errors = [values["damaged"] for values in worlds[name].values]
    assert any("is damaged or incomplete" in error for error in errors)
    assert worlds[name].same("damaged keeps") is True


@pytest.mark.parametrize("name", NAMES)
def test_odd_steps(name: str, worlds: dict[str, Found]) -> None:
    """Nothing to train or gradients that are not finite keep the weights; how a batch is cut does not matter."""
    assert worlds[name].same("empty") is True
    assert worlds[name].same("not finite") == [True, 2]
    assert worlds[name].same("first again") == [0, True]
    assert worlds[name].same("cut") is True
