"""Attention of a packed micro-batch: every sample sees only itself. Owns one attention function for all trainers.

On a GPU one flash kernel serves all samples; elsewhere neighbours of one length share a call, so the trainer packs
samples by length. Nothing is computed for pairs of tokens from different samples and nothing is padded. A dense
block-diagonal mask (transformers' way for packed `position_ids`) computes all pairs: with samples of 300 tokens in
micro-batches of 2,048, a whole step on CPU takes 2.3 times as long.
"""

from __future__ import annotations

from itertools import accumulate, groupby
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from rollart_hpc.errors import SiteError

NAME = "rollart_packed"
_KERNEL_TYPES = (torch.bfloat16, torch.float16)  # of flash attention
_UNSUPPORTED = ("softcap", "s_aux", "position_bias")  # they change the result, so they must not be ignored


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    sample_lengths: list[int],
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """query, key, value: [1, heads, tokens, head_dim]; the samples are concatenated along `tokens`."""
    unknown = [name for name in _UNSUPPORTED if others.get(name) is not None]
    if unknown:
        what = f"{type(module).__name__} needs {', '.join(unknown)}, which this trainer does not support"
        raise SiteError(what, "choose another model in model.path")
    q, k, v = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    return attend(q, k, v, sample_lengths, scaling, sliding_window)[None], None


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int], scaling: float | None, window: int | None
) -> torch.Tensor:
    """Causal attention within each sample: [tokens, heads, head_dim] each, samples one after the other.

    `window`: tokens that a token sees, itself included; None = all before it.
    """
    if q.is_cuda and q.dtype in _KERNEL_TYPES:
        return _in_one_call(q, k, v, lengths, scaling, window)
    return _by_length(q, k, v, lengths, scaling, window)


def _in_one_call(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int], scaling: float | None, window: int | None
) -> torch.Tensor:
    """Flash attention over samples of any lengths. Written from torch's sources; never run on a GPU."""
    ends = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=q.device)
    longest = max(lengths)
    left = -1 if window is None or longest <= window else window - 1
    attended = varlen_attn(
        q, k, v, ends, ends, longest, longest,
        scale=scaling, window_size=(left, 0), enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip
    assert isinstance(attended, torch.Tensor)  # nothing else was asked for
    return attended


def _by_length(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int], scaling: float | None, window: int | None
) -> torch.Tensor:
    """Neighbours of one length share a call: each call has a cost of its own, in backward above all."""
    runs = [(length, len(list(same))) for length, same in groupby(lengths)]
    sizes = [length * count for length, count in runs]
    done = []
    for (length, count), *parts in zip(runs, *(tensor.split(sizes) for tensor in (q, k, v)), strict=True):
        some_q, some_k, some_v = (part.unflatten(0, (count, length)).transpose(1, 2) for part in parts)
        done.append(_batched(some_q, some_k, some_v, scaling, window).transpose(1, 2).flatten(0, 1))
    return done[0] if len(done) == 1 else torch.cat(done)


def _batched(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float | None, window: int | None
) -> torch.Tensor:
    """[samples, heads, tokens, head_dim] each."""
    num_tokens, is_grouped = q.shape[2], q.shape[1] != k.shape[1]
    if window is None or num_tokens <= window:
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=is_grouped)
    distance = torch.arange(num_tokens, device=q.device)[:, None] - torch.arange(num_tokens, device=q.device)
    mask = (distance >= 0) & (distance < window)
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scaling, enable_gqa=is_grouped)


def _no_mask(*_: Any, **__: Any) -> None:
    return None


def register() -> str:
    """Register the function with transformers; returns its `attn_implementation`."""
    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, _no_mask)
    return NAME
