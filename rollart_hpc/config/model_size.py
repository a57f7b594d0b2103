"""How many parameters a model has, from the small files of its directory. Loads no weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollart_hpc.errors import UserError
from rollart_hpc.model_files import read_settings

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1}


def count_in(directory: Path) -> int:
    """0 if the files don't say it."""
    try:
        settings = read_settings(directory / "config.json")
        index = read_settings(directory / "model.safetensors.index.json")
    except UserError:  # another check reports it
        return 0
    return from_index(settings, index) or from_shapes(settings)


def from_index(settings: dict[str, Any], index: dict[str, Any]) -> int:
    """From the bytes of all tensors, as the index of safetensors files has them."""
    total = (index.get("metadata") or {}).get("total_size", 0)
    stored = settings.get("dtype") or settings.get("torch_dtype") or ""
    return int(total) // _ITEM_BYTES[stored] if total and stored in _ITEM_BYTES else 0


def from_shapes(settings: dict[str, Any]) -> int:
    """From the layers of a decoder, dense or with experts; norms and biases are too small to count.

    >>> from_shapes({"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    ...              "vocab_size": 100, "tie_word_embeddings": True})
    88320
    """
    text = {**settings, **(settings.get("text_config") or {})}
    hidden, layers, heads = (text.get(k, 0) for k in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    if not (hidden and layers and heads):
        return 0
    head_dim = text.get("head_dim") or hidden // heads
    attention = hidden * head_dim * (2 * heads + 2 * (text.get("num_key_value_heads") or heads))
    embeddings = text.get("vocab_size", 0) * hidden * (1 if text.get("tie_word_embeddings") else 2)
    return int(embeddings + layers * (attention + _mlp(text, hidden)))


def _mlp(text: dict[str, Any], hidden: int) -> int:
    experts = next((text[k] for k in ("num_experts", "num_local_experts", "n_routed_experts") if text.get(k)), 0)
    if not experts:
        return 3 * hidden * int(text.get("intermediate_size") or 4 * hidden)
    width = int(text.get("moe_intermediate_size") or text.get("intermediate_size") or 0)
    return int(experts) * (3 * hidden * width + hidden)
