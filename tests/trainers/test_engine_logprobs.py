"""Engine and trainer agree: on the same tokens and weights, also across an install during a request."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers

from rollart_hpc.config.schema import EngineConfig, RunConfig, TrainerConfig
from rollart_hpc.engines.contract import Request
from rollart_hpc.engines.torch.engine import TorchEngine
from rollart_hpc.trainers.fsdp.trainer import FsdpTrainer
from rollart_hpc.types import Sample, TokenRecord, TrainGroup, WeightsId
from rollart_hpc.wire.prefix import prefix_hash

PROMPT = np.array([7, 8, 9, 10, 11], np.int32)
NEW_TOKENS = 24


@pytest.fixture
def trainer(tmp_path, world):
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=128, tie_word_embeddings=True,
        initializer_range=0.3, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    transformers.Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    return FsdpTrainer(RunConfig(trainer=TrainerConfig(lr=0.05)), tmp_path, world), tmp_path


def install(engine, trainer, version):
    named = [(name, tensor.clone()) for name, tensor in trainer.export()]
    engine.suspend()
    engine.install(named, WeightsId(1, version))
    engine.resume()


def whole(sampled: TokenRecord) -> TokenRecord:
    observed = np.zeros(len(PROMPT), np.float32)
    return TokenRecord(
        np.concatenate([PROMPT, sampled.ids]),
        np.concatenate([observed, sampled.logprobs]),
        np.concatenate([np.full(len(PROMPT), -1, np.int32), sampled.versions]),
    )


def train_once(trainer, sampled):
    samples = [Sample(f"t{i}", 0, "task", whole(sampled), reward=float(i)) for i in range(2)]
    samples[1].record.ids[-1] = 3  # the two must differ, or the advantage moves nothing
    trainer.accumulate([TrainGroup(0, "task", samples)])
    trainer.step()


def test_log_probs_agree_each_token_under_its_own_version(trainer, world):
    trainer, directory = trainer
    engine = TorchEngine(directory, EngineConfig(max_running=4, kv_slots=4), 128)
    install(engine, trainer, 0)
    engine.add(Request(1, "t", 0, prefix_hash(PROMPT[:0]), True, PROMPT, NEW_TOKENS, 1.0, 0))
    for _ in range(NEW_TOKENS // 2):
        assert not engine.step()
    warm_up = TokenRecord(np.array([4, 5, 6], np.int32), np.full(3, -2.0, np.float32), np.zeros(3, np.int32))
    before = [tensor.clone() for _, tensor in trainer.export()]

    train_once(trainer, warm_up)
    assert any(not torch.equal(a, b) for a, (_, b) in zip(before, trainer.export()))
    install(engine, trainer, 1)
    done = []
    while not done:
        done = engine.step()
    record = whole(done[0].record)
    assert set(done[0].record.versions.tolist()) == {0, 1}

    check(record, trainer.logprobs([record])[0], version=1)
    first = FsdpTrainer(RunConfig(), directory, world)  # as it was before the step
    check(record, first.logprobs([record])[0], version=0)


def check(record, expected, version):
    own = record.versions[record.sampled] == version
    assert own.any()
    agreed = record.logprobs[record.sampled][own], expected[record.sampled][own]
    np.testing.assert_allclose(*agreed, atol=1e-4, rtol=0)
