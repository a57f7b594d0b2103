from __future__ import annotations

import json
from pathlib import Path

from rollart_hpc.config.model_size import count_in, from_shapes

QWEN3_32B = {
    "hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 25600, "vocab_size": 151936,
}  # fmt: skip
QWEN3_30B_A3B = QWEN3_32B | {
    "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
    "num_experts": 128, "moe_intermediate_size": 768,
}  # fmt: skip


def test_shapes_of_known_models() -> None:
    assert round(from_shapes(QWEN3_32B) / 1e9, 1) == 32.8
    assert round(from_shapes(QWEN3_30B_A3B) / 1e9, 1) == 30.5
    assert from_shapes({"text_config": QWEN3_32B}) == from_shapes(QWEN3_32B) and from_shapes({}) == 0


def test_the_index_of_the_weights_counts_more_than_shapes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_32B | {"torch_dtype": "bfloat16"}))
    assert count_in(tmp_path) == from_shapes(QWEN3_32B)
    (tmp_path / "model.safetensors.index.json").write_text('{"metadata": {"total_size": 2000}}')
    assert count_in(tmp_path) == 1000


def test_unreadable_files_say_nothing(tmp_path: Path) -> None:
    assert count_in(tmp_path) == 0
    (tmp_path / "config.json").write_text("{")
    assert count_in(tmp_path) == 0
