"""What a model computes for a sample of some length. Computes it from the model's config.json; loads no model.

A forward pass over n tokens takes 2 * P * n operations in linear layers, where P is the number of parameters that each
token uses. Causal attention takes 2 * Q * n * n, where Q is the width of the queries, summed over layers. Backward and
recomputation multiply both by the same factor. Both are equal at n = P / Q tokens: 50,000 for Qwen3-8B.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

LINEAR = 1 << 30  # attention costs nothing in comparison


class Operations(NamedTuple):
    """P and Q; 0 if the model's config does not say."""

    linear: int = 0
    quadratic: int = 0

    def forward(self, num_tokens: int) -> float:
        """Of one sample."""
        return 2.0 * num_tokens * (self.linear + self.quadratic * num_tokens)

    @property
    def even_tokens(self) -> int:
        """P / Q. `LINEAR` if the model is unknown; plans then balance tokens."""
        return min(LINEAR, max(1, self.linear // self.quadratic)) if self.quadratic else LINEAR


def operations(directory: Path) -> Operations:
    """Of the model in this directory."""
    try:
        config = json.loads((directory / "config.json").read_text())
        return operations_of(config.get("text_config", config))
    except (OSError, ValueError, KeyError):
        return Operations()


def operations_of(config: Mapping[str, Any]) -> Operations:
    hidden, heads, layers = config["hidden_size"], config["num_attention_heads"], config["num_hidden_layers"]
    head_dim = config.get("head_dim") or hidden // heads
    keys = (config.get("num_key_value_heads") or heads) * head_dim
    queries = heads * head_dim
    block = 2 * hidden * (queries + keys) + 3 * hidden * _mlp_width(config)
    linear = layers * block + hidden * config["vocab_size"]
    num_quadratic = sum(kind == "full_attention" for kind in config.get("layer_types") or ["full_attention"] * layers)
    return Operations(linear, num_quadratic * queries)


def _mlp_width(config: Mapping[str, Any]) -> int:
    """For a mixture of experts: the total width of the experts that one token uses."""
    if config.get("num_experts_per_tok") and config.get("moe_intermediate_size"):
        return int(config["num_experts_per_tok"] * config["moe_intermediate_size"])
    return int(config["intermediate_size"])
