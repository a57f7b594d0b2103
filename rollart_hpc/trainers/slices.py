"""Scores of tokens from hidden states, slice by slice, in forward and in backward. Knows no model and no loss.

Logits are as wide as the vocabulary: 20 GB for 32k tokens of Qwen3 in float32. Here only those of a slice exist at a
time. Forward keeps nothing but its inputs; backward computes each slice again. Gradients of the weights are summed over
slices in float32, whatever the weights are, so that many slices lose no precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

SLICE_NUMBERS = 1 << 27  # logits in memory at a time: 512 MiB in float32
Score = Callable[..., torch.Tensor]  # (hidden, targets, *weights) -> [tokens, scores]


def in_slices(
    score: Score, hidden: torch.Tensor, targets: torch.Tensor, weights: tuple[torch.Tensor, ...], width: int
) -> torch.Tensor:
    """`score` of all tokens. Its result for a token must not depend on other tokens. `width`: logits per token."""
    rows = max(1, SLICE_NUMBERS // width)
    if len(hidden) <= rows:
        return score(hidden, targets, *weights)
    found: torch.Tensor = _Sliced.apply(score, rows, targets, hidden, *weights)
    return found


class _Sliced(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, score: Score, rows: int, targets: torch.Tensor, hidden: torch.Tensor, *weights: torch.Tensor
    ) -> torch.Tensor:
        ctx.score, ctx.rows = score, rows
        ctx.save_for_backward(targets, hidden, *weights)
        parts = zip(hidden.split(rows), targets.split(rows), strict=True)
        return torch.cat([score(some, wanted, *weights) for some, wanted in parts])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        targets, hidden, *weights = ctx.saved_tensors
        _, _, _, wants_hidden, *wants = ctx.needs_input_grad
        sums = [_zeros(weight) if wanted else None for weight, wanted in zip(weights, wants, strict=True)]
        of_hidden = torch.empty_like(hidden) if wants_hidden else None
        for at in range(0, len(hidden), ctx.rows):
            rows = slice(at, at + ctx.rows)
            inputs = [_leaf(hidden[rows], wants_hidden), *map(_leaf, weights, wants)]
            with torch.enable_grad():
                scores = ctx.score(inputs[0], targets[rows], *inputs[1:])
            wanted = [tensor for tensor in inputs if tensor.requires_grad]
            found = iter(torch.autograd.grad(scores, wanted, gradient[rows]))
            if of_hidden is not None:
                of_hidden[rows] = next(found)
            for total in sums:
                if total is not None:
                    total.add_(next(found))
        return None, None, None, of_hidden, *(_as(total, weight) for total, weight in zip(sums, weights, strict=True))


def _leaf(tensor: torch.Tensor, wants_gradient: bool) -> torch.Tensor:
    return tensor.detach().requires_grad_(wants_gradient)


def _zeros(weight: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(weight, dtype=torch.float32)


def _as(total: torch.Tensor | None, weight: torch.Tensor) -> torch.Tensor | None:
    return None if total is None else total.to(weight.dtype)
