"""Attention of one forward: packed tokens of many trajectories against their rows of the KV cache.

Owns the plan of a forward (the row and position of each token) and the function that transformers calls in every
layer. The function is registered without a mask function, so transformers builds no masks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rollart_hpc.engines.torch.kv import KvCache

NAME = "rollart_rows"
_UNSUPPORTED = ("softcap", "s_aux")  # attention features, other than a window, that some models need

Ints = NDArray[np.int64]


@dataclass(slots=True)
class Block:
    """Rows that attend together, their new tokens padded to [row, width]. Decoding rows have width 1: no padding."""

    rows: slice | torch.Tensor
    num_rows: int
    width: int
    length: int  # number of keys to read: those of the longest row
    positions: torch.Tensor  # [row, width] of the queries
    source: slice | torch.Tensor  # [row * width] index of each query among the packed tokens
    inside: torch.Tensor | None  # which of [row * width] are real; None: all
    target: slice | torch.Tensor  # their index among the packed tokens
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, groups: int, dtype: torch.dtype) -> torch.Tensor:
        """Mask added to the scores [row, 1, groups * width, length]; layers with the same window share it."""
        if window not in self.masks:
            keys = torch.arange(self.length, device=self.positions.device)
            queries = self.positions[:, None, :, None]
            hidden = keys > queries
            if window is not None:
                hidden |= keys <= queries - window
            mask = torch.zeros(hidden.shape, device=hidden.device, dtype=dtype).masked_fill_(hidden, -math.inf)
            self.masks[window] = mask.repeat(1, 1, groups, 1) if self.width > 1 else mask
        return self.masks[window]


@dataclass(slots=True)
class AttentionPlan:
    """The tokens of one forward: the row and position of each, and the blocks that attend together."""

    cache: KvCache
    rows: Ints
    positions: Ints
    blocks: list[Block]
    device_rows: torch.Tensor
    device_positions: torch.Tensor


def make_plan(cache: KvCache, starts: Ints, counts: Ints, num_decoding: int) -> AttentionPlan:
    """Row r runs `counts[r]` tokens from position `starts[r]`. Tokens are packed in row order, decoding rows first."""
    device = cache.data.device
    ends = np.cumsum(counts)
    rows = np.repeat(np.arange(len(counts)), counts)
    positions = np.arange(len(rows)) - np.repeat(ends - counts - starts, counts)
    device_positions = _put(positions, device)
    blocks = []
    if num_decoding:
        these, length = slice(0, num_decoding), int(starts[:num_decoding].max()) + 1
        blocks.append(Block(these, num_decoding, 1, length, device_positions[these, None], these, None, these))
    for members in _similar(counts, num_decoding):
        blocks.append(_prefill_block(members, starts[members], counts[members], (ends - counts)[members], device))
    return AttentionPlan(cache, rows, positions, blocks, _put(rows, device), device_positions)


def _similar(counts: Ints, first: int) -> list[Ints]:
    """Groups rows from `first` on whose token counts are within a factor of two, so padding stays below half."""
    if len(counts) == first:
        return []
    sizes = np.ceil(np.log2(counts[first:]))
    return [first + np.flatnonzero(sizes == size) for size in np.unique(sizes)]


def _prefill_block(members: Ints, starts: Ints, counts: Ints, begins: Ints, device: torch.device) -> Block:
    """`begins`: index of each row's first token among the packed ones."""
    width = int(counts.max())
    offsets = np.arange(width)
    real = offsets < counts[:, None]
    padded = np.where(real, offsets, 0)  # padding repeats a row's first token
    source = (begins[:, None] + padded).ravel()
    inside = np.flatnonzero(real)
    is_slice = members[-1] - members[0] + 1 == len(members)
    return Block(
        rows=slice(int(members[0]), int(members[-1]) + 1) if is_slice else _put(members, device),
        num_rows=len(members),
        width=width,
        length=int((starts + counts).max()),
        positions=_put(starts[:, None] + padded, device),
        source=_put(source, device),
        inside=None if len(inside) == len(source) else _put(inside, device),
        target=_put(source[inside], device),
    )


def _put(array: Ints, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(array).to(device)


def row_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    plan: AttentionPlan,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, heads, token, dim], key and value [1, kv_heads, token, dim] -> [1, token, heads, dim]."""
    if any(others.get(name) is not None for name in _UNSUPPORTED):
        raise NotImplementedError(f"engine torch: this model's attention needs one of {_UNSUPPORTED}")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    plan.cache.write(layer, plan.device_rows, plan.device_positions, key[0], value[0])
    queries = query[0].transpose(0, 1)
    groups = query.shape[1] // key.shape[1]
    out = torch.empty_like(queries, memory_format=torch.contiguous_format)
    for block in plan.blocks:
        keys, values = plan.cache.read(layer, block.rows, block.length)
        mask = block.mask(sliding_window, groups, query.dtype)
        folded = _fold(queries[block.source], block, groups)
        found = scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scaling)
        out[block.target] = _unfold(found, block, groups)
    return out[None], None


def _fold(queries: torch.Tensor, block: Block, groups: int) -> torch.Tensor:
    """[row * width, heads, dim] -> [row, kv_heads, groups * width, dim].

    Query heads that share a key head become additional queries, so keys are never copied.
    """
    heads, dim = queries.shape[1:]
    split = queries.reshape(block.num_rows, block.width, heads // groups, groups, dim)
    return split.permute(0, 2, 3, 1, 4).flatten(2, 3)


def _unfold(found: torch.Tensor, block: Block, groups: int) -> torch.Tensor:
    """The inverse of `_fold`, without the padding: -> [token of the block, heads, dim]."""
    split = found.unflatten(2, (groups, block.width)).permute(0, 3, 1, 2, 4)
    flat = split.reshape(block.num_rows * block.width, -1, found.shape[-1])
    return flat if block.inside is None else flat[block.inside]


AttentionInterface.register(NAME, row_attention)
