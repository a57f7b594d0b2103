"""Attention of one forward over packed tokens of many trajectories, against their rows of the KV cache.

Owns the plan of a forward (which token belongs to which row and position) and the function that transformers
calls in every layer. Registered without a mask function, so that transformers builds no masks of its own.
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

from rollart_hpc.engines.kv import KvCache

NAME = "rollart_rows"
_UNSUPPORTED = ("softcap", "s_aux")  # what some models ask of their attention besides a window


@dataclass(slots=True)
class Block:
    """Some rows' new tokens, padded to [row, width] for attention; `source` and `target` map from and to the packing.

    A decode block has width 1 and covers the rows 0..n-1 in order: nothing is gathered.
    """

    rows: torch.Tensor | None  # None: the first `num_rows` ones
    num_rows: int
    width: int
    length: int  # keys to look at: the longest row's
    positions: torch.Tensor  # [row, width] of the queries
    source: torch.Tensor | slice  # [row * width] packed index of each query
    inside: torch.Tensor | None  # [token] index into row * width of each packed token; None: all of them
    target: torch.Tensor | slice  # [token] packed index
    masks: dict[int | None, torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, groups: int, dtype: torch.dtype) -> torch.Tensor:
        """Added to the scores [row, 1, groups * width, length]; the same in all layers with this window."""
        if window not in self.masks:
            keys = torch.arange(self.length, device=self.positions.device)
            queries = self.positions[:, None, :, None]
            hidden = keys > queries
            if window is not None:
                hidden |= keys <= queries - window
            mask = torch.zeros(hidden.shape, device=hidden.device, dtype=dtype).masked_fill_(hidden, -math.inf)
            shape = (self.num_rows, 1, groups, self.width, self.length)
            self.masks[window] = mask[:, :, None].expand(shape).flatten(2, 3) if self.width > 1 else mask
        return self.masks[window]


@dataclass(slots=True)
class Plan:
    """The tokens of one forward: `rows[t]` and `positions[t]` of packed token t, and the blocks they attend in."""

    cache: KvCache
    packed_rows: NDArray[np.int64]
    packed_positions: NDArray[np.int64]
    rows: torch.Tensor  # the same two on the device
    positions: torch.Tensor
    blocks: list[Block]


def make_plan(cache: KvCache, starts: NDArray[np.int64], counts: NDArray[np.int64], num_decoding: int) -> Plan:
    """Row r runs `counts[r]` tokens from position `starts[r]`; tokens are packed in row order, decoding rows first."""
    device = cache.data.device
    num_rows = len(counts)
    rows = np.repeat(np.arange(num_rows), counts)
    ends = np.cumsum(counts)
    positions = np.arange(len(rows)) - np.repeat(ends - counts - starts, counts)
    packed_positions = torch.from_numpy(positions).to(device)
    blocks = []
    if num_decoding:
        length = int(starts[:num_decoding].max()) + 1
        own = slice(0, num_decoding)
        blocks.append(
            Block(None, num_decoding, 1, length, packed_positions[own, None], own, None, own)
        )  # fmt: skip
    for members in _similar(counts, num_decoding):
        blocks.append(_prefill_block(members, starts, counts, ends, device))
    return Plan(cache, rows, positions, torch.from_numpy(rows).to(device), packed_positions, blocks)


def _similar(counts: NDArray[np.int64], first: int) -> list[NDArray[np.int64]]:
    """Rows from `first` on, together if their token counts are within a factor of two: padding stays below half."""
    sizes = np.ceil(np.log2(counts[first:])).astype(np.int64)
    return [first + np.flatnonzero(sizes == size) for size in np.unique(sizes)]


def _prefill_block(
    members: NDArray[np.int64],
    starts: NDArray[np.int64],
    counts: NDArray[np.int64],
    ends: NDArray[np.int64],
    device: torch.device,
) -> Block:
    own, begins = counts[members], (ends - counts)[members]
    width = int(own.max())
    offsets = np.arange(width)
    real = offsets < own[:, None]
    source = np.where(real, begins[:, None] + offsets, begins[:, None])  # padding repeats a row's first token
    positions = np.where(real, starts[members][:, None] + offsets, 0)
    inside = np.flatnonzero(real)

    def put(array: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    return Block(
        rows=put(members),
        num_rows=len(members),
        width=width,
        length=int((starts[members] + own).max()),
        positions=put(positions),
        source=put(source.ravel()),
        inside=put(inside),
        target=put(source.ravel()[inside]),
    )


def row_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    plan: Plan,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """query [1, heads, token, dim], key and value [1, kv_heads, token, dim] -> [1, token, heads, dim]."""
    if any(others.get(name) is not None for name in _UNSUPPORTED):
        raise NotImplementedError(f"engine torch: this model's attention needs one of {_UNSUPPORTED}")
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    plan.cache.write(layer, plan.rows, plan.positions, key[0], value[0])
    queries = query[0].transpose(0, 1)
    if len(plan.blocks) == 1 and plan.blocks[0].rows is None:
        return _attend(plan, plan.blocks[0], layer, queries, scaling, sliding_window)[None], None
    out = torch.empty(queries.shape, device=queries.device, dtype=queries.dtype)
    for block in plan.blocks:
        out[block.target] = _attend(plan, block, layer, queries, scaling, sliding_window)
    return out[None], None


def _attend(
    plan: Plan, block: Block, layer: int, queries: torch.Tensor, scaling: float | None, window: int | None
) -> torch.Tensor:
    """Queries [token, heads, dim] of the block's rows -> [token of the block, heads, dim].

    Query heads that share a key head stand side by side as more queries, so that keys are never repeated.
    """
    heads, dim = queries.shape[1:]
    kv_heads = plan.cache.shape.num_heads
    groups = heads // kv_heads
    padded = queries[block.source].view(block.num_rows, block.width, kv_heads, groups, dim)
    folded = padded.permute(0, 2, 3, 1, 4).reshape(block.num_rows, kv_heads, groups * block.width, dim)
    if block.rows is None:
        keys, values = plan.cache.front(layer, block.num_rows, block.length)
    else:
        keys, values = plan.cache.gather(layer, block.rows, block.length)
    mask = block.mask(window, groups, queries.dtype)
    found = scaled_dot_product_attention(folded, keys, values, attn_mask=mask, scale=scaling)
    unfolded = found.view(block.num_rows, kv_heads, groups, block.width, dim).permute(0, 3, 1, 2, 4)
    flat = unfolded.reshape(block.num_rows * block.width, heads, dim)
    return flat if block.inside is None else flat[block.inside]


AttentionInterface.register(NAME, row_attention)
