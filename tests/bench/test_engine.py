"""The comparison of an engine with its backend: its arithmetic, what it refuses, and once for real on a bare model."""

from __future__ import annotations

import json

import pytest

from rollart_hpc.bench.engine import Result, Settings, bench_engine
from rollart_hpc.errors import UserError


def test_the_median_of_the_pairs_counts() -> None:
    result = Result(Settings(), ours=[90.0, 100.0, 300.0], raw=[100.0, 100.0, 100.0])
    assert result.ratio_to_raw == 1.0
    content = json.loads(result.as_json())
    assert content["ratio_to_raw"] == 1.0 and content["engine"] == "vllm" and content["batch"] == 16
    assert "0.900" in result.as_text() and "median ratio to raw vllm: 1.000" in result.as_text()


@pytest.mark.parametrize("key", ["batch", "prompt_tokens", "new_tokens", "pairs"])
def test_nothing_to_run_is_refused(key) -> None:
    with pytest.raises(UserError, match=key):
        Settings(**{key: 0})


def test_a_directory_without_a_model_is_refused(tmp_path) -> None:
    with pytest.raises(UserError, match=r"config\.json"):
        bench_engine(Settings(kind="torch", model=tmp_path), lambda text: None)


def test_engine_torch_against_transformers(tmp_path) -> None:
    import transformers

    config = transformers.Qwen3Config(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, max_position_embeddings=64, eos_token_id=5, tie_word_embeddings=True,
    )  # fmt: skip
    transformers.Qwen3ForCausalLM(config).save_pretrained(tmp_path)
    said: list[str] = []
    settings = Settings(kind="torch", model=tmp_path, batch=3, prompt_tokens=6, new_tokens=5, pairs=2)
    result = bench_engine(settings, said.append)
    assert len(result.ours) == len(result.raw) == 2 and result.ratio_to_raw > 0
    assert any("pair 2" in line for line in said)
