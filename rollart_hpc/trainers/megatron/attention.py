"""Packed attention without Transformer Engine. Owns one module of megatron's layer spec.

megatron's own torch attention does not support packed (`thd`) samples. This module takes the same arguments as
Transformer Engine's, so models and schedules are the same on CPU and GPU.
"""

from __future__ import annotations

from typing import Any

import torch

from rollart_hpc.trainers.attention import attend


class PackedAttention(torch.nn.Module):
    """Causal within each sample, no attention across samples."""

    def __init__(self, *, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__()
        self._scale = softmax_scale

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: None,
        *,
        packed_seq_params: Any,
        **_: Any,
    ) -> torch.Tensor:
        """[tokens, heads, head_dim] each; key and value have fewer heads if queries share them."""
        lengths = packed_seq_params.cu_seqlens_q.diff().tolist()
        return attend(query, key, value, lengths, self._scale, None)
