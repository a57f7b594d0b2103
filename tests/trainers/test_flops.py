from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.trainers.flops import LINEAR, operations, operations_of

QWEN3_8B: dict[str, Any] = {
    "hidden_size": 4096, "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 12288, "vocab_size": 151936,
}  # fmt: skip


def test_the_length_at_which_attention_costs_as_much_as_the_rest() -> None:
    linear = 36 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288) + 4096 * 151936
    assert operations_of(QWEN3_8B).even_tokens == linear // (36 * 4096)
    assert 40_000 < operations_of(QWEN3_8B).even_tokens < 60_000


def test_layers_with_a_window_are_linear() -> None:
    half = QWEN3_8B | {"layer_types": ["full_attention", "sliding_attention"] * 18}
    assert operations_of(half).even_tokens == pytest.approx(2 * operations_of(QWEN3_8B).even_tokens, abs=1)
    assert operations_of(QWEN3_8B | {"layer_types": ["sliding_attention"] * 36}).even_tokens == LINEAR


def test_a_token_meets_few_of_the_experts() -> None:
    experts = QWEN3_8B | {"num_experts_per_tok": 8, "moe_intermediate_size": 1536, "intermediate_size": 1}
    assert operations_of(experts).even_tokens == operations_of(QWEN3_8B).even_tokens


@pytest.mark.parametrize("content", [None, "{", "{}", json.dumps({"n_embd": 64})])
def test_a_config_that_does_not_tell_balances_tokens(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    assert operations(tmp_path).even_tokens == LINEAR


def test_it_is_read_from_the_models_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": QWEN3_8B}))
    assert operations(tmp_path).even_tokens == operations_of(QWEN3_8B).even_tokens


def test_operations_of_a_sample() -> None:
    found = operations_of(QWEN3_8B)
    assert found.forward(1) == pytest.approx(2 * 7.57e9, rel=0.01)
    assert found.forward(found.even_tokens) == pytest.approx(4.0 * found.even_tokens * found.linear, rel=1e-3)
