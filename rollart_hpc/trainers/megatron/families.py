"""Llama, Qwen2 and Qwen3 in megatron's terms. Owns the meaning of a Hugging Face config; refuses unsupported ones."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollart_hpc.errors import SiteError
from rollart_hpc.files import read_json

FAMILIES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True)
class Family:
    """A dense decoder: rotary positions, RMS norms, gated SiLU."""

    name: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocabulary: int
    max_positions: int
    norm_epsilon: float
    rope_theta: float
    is_tied: bool
    rope_scaling: dict[str, Any] | None = None  # of type llama3, or None

    @property
    def has_qkv_bias(self) -> bool:
        return self.name == "qwen2"

    @property
    def has_qk_norm(self) -> bool:
        return self.name == "qwen3"

    def padded_vocabulary(self, multiple: int) -> int:
        return -(-self.vocabulary // multiple) * multiple


def read_family(directory: Path) -> Family:
    config = read_json(directory / "config.json")
    if config is None:
        raise SiteError(f"can't train {directory}: it has no config.json", "check model.path")
    _refuse(directory, config)
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    heads = config["num_attention_heads"]
    return Family(
        name=config["model_type"],
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        ffn_size=config["intermediate_size"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or config["hidden_size"] // heads,
        vocabulary=config["vocab_size"],
        max_positions=config["max_position_embeddings"],
        norm_epsilon=config["rms_norm_eps"],
        rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10000.0),
        is_tied=bool(config.get("tie_word_embeddings", False)),
        rope_scaling=rope if _rope_type(rope) == "llama3" else None,
    )


def _refuse(directory: Path, config: dict[str, Any]) -> None:
    """Raises for models that megatron would compute differently than transformers."""
    kind = config.get("model_type")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    reasons = {
        f"it is of type {kind}": kind not in FAMILIES,
        "its attention has biases": bool(config.get("attention_bias")) and kind != "qwen2",
        "its MLP has biases": bool(config.get("mlp_bias")),
        "its activation is not silu": config.get("hidden_act", "silu") != "silu",
        "its attention has sliding windows": "sliding_attention" in (config.get("layer_types") or ())
        or bool(config.get("use_sliding_window")),
        f"its positions are of type {_rope_type(rope)}": _rope_type(rope) not in ("default", "llama3"),
    }
    found = [reason for reason, holds in reasons.items() if holds]
    if found:
        what = f"trainer.kind: megatron can't train {directory}: {' and '.join(found)}"
        raise SiteError(what, f"it supports {', '.join(FAMILIES)}; trainer.kind: fsdp supports more")


def _rope_type(rope: dict[str, Any]) -> str:
    return str(rope.get("rope_type") or rope.get("type") or "default")
