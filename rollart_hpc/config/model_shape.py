"""The shape of a decoder, from its config.json. Loads no weights and knows no hardware."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollart_hpc.errors import UserError
from rollart_hpc.model_files import read_settings


@dataclass(frozen=True)
class ModelShape:
    """A dense decoder: attention with shared keys, a gated MLP, two norms per block."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    is_tied: bool
    has_qk_norm: bool = False

    @property
    def queries(self) -> int:
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        norms = 2 * self.hidden + (2 * self.head_dim if self.has_qk_norm else 0)
        return self.hidden * (2 * self.queries + 2 * self.keys + 3 * self.ffn) + norms

    @property
    def table_parameters(self) -> int:
        """Embeddings, head and last norm."""
        return self.vocabulary * self.hidden * (1 if self.is_tied else 2) + self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.table_parameters


def read_shape(directory: Path) -> ModelShape | None:
    """None if config.json is missing, unreadable or of a model that is not a dense decoder."""
    try:
        return shape_of(read_settings(directory / "config.json"))
    except UserError:
        return None


def shape_of(settings: dict[str, Any]) -> ModelShape | None:
    text = {**settings, **(settings.get("text_config") or {})}
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    if not all(isinstance(text.get(name), int) and text[name] > 0 for name in names) or _has_experts(text):
        return None
    hidden, layers, heads, ffn, vocabulary = (int(text[name]) for name in names)
    return ModelShape(
        hidden,
        layers,
        heads,
        kv_heads=int(text.get("num_key_value_heads") or heads),
        head_dim=int(text.get("head_dim") or hidden // heads),
        ffn=ffn,
        vocabulary=vocabulary,
        is_tied=bool(text.get("tie_word_embeddings", False)),
        has_qk_norm="qwen3" in str(text.get("model_type", "")),
    )


def _has_experts(text: dict[str, Any]) -> bool:
    return any(text.get(name) for name in ("num_experts", "num_local_experts", "n_routed_experts"))
