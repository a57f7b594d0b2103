"""Shapes of public models by name, from their config.json, so that a run can be judged before the model is there."""

from __future__ import annotations

from rollart_hpc.config.model_shape import ModelShape

_VOCABULARY = 151936

SHAPES = {
    "qwen3-8b": ModelShape(4096, 36, 32, 8, 128, 12288, _VOCABULARY, is_tied=False, has_qk_norm=True),
    "qwen3-14b": ModelShape(5120, 40, 40, 8, 128, 17408, _VOCABULARY, is_tied=False, has_qk_norm=True),
    "qwen3-32b": ModelShape(5120, 64, 64, 8, 128, 25600, _VOCABULARY, is_tied=False, has_qk_norm=True),
}
