"""Log-probs of sampled tokens when each rank has the logits of a part of the vocabulary. Knows no model and no loss.

No rank ever holds a row of the whole vocabulary: maxima, sums of exponentials and the chosen logit are reduced.
Every tensor-parallel rank computes the same loss from them, so the gradient of a reduced sum passes through unchanged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region

_NEVER = -1e30  # logit of padding rows: no probability, no gradient


class Chosen(NamedTuple):
    logprobs: torch.Tensor  # [tokens]
    entropy: torch.Tensor | None  # [tokens]


def chosen_logprobs(
    logits: torch.Tensor, targets: torch.Tensor, *, vocabulary: int, group: Any, wants_entropy: bool
) -> Chosen:
    """`logits` [tokens, share of the padded vocabulary] of this rank, `targets` [tokens] in the whole vocabulary."""
    share = logits.shape[-1]
    first = group.rank() * share
    is_padding = torch.arange(share, device=logits.device) >= vocabulary - first
    logits = logits.masked_fill(is_padding, _NEVER)
    highest = logits.detach().amax(-1)
    dist.all_reduce(highest, dist.ReduceOp.MAX, group=group)
    shifted = logits - highest[:, None]
    exponents = shifted.exp()
    total = _sum(exponents.sum(-1))
    local = targets - first
    is_here = (local >= 0) & (local < share)
    picked = shifted.gather(1, local.clamp(0, share - 1)[:, None])[:, 0]
    chosen = _sum(torch.where(is_here, picked, picked.new_zeros(())))
    logprobs = chosen - total.log()
    if not wants_entropy:
        return Chosen(logprobs, None)
    return Chosen(logprobs, total.log() - _sum((exponents * shifted).sum(-1)) / total)


def _sum(part: torch.Tensor) -> torch.Tensor:
    return reduce_from_tensor_model_parallel_region(part)
