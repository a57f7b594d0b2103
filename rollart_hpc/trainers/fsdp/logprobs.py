"""Computes log-probs and entropies from logits. Owns how many of the log-probs are in memory at a time.

The log-probs of each token are as wide as the vocabulary, and backward needs them again. For long answers and large
vocabularies they would not fit beside the model, so they are computed in slices, and again in backward.
"""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from rollart_hpc.trainers.algorithms import entropy_of

SLICE_NUMBERS = 1 << 27  # log-probs in memory at a time: 512 MiB


def scores_of(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float, *, with_entropy: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-prob of each target at the sampling temperature, in float32, and the entropy of its distribution."""
    rows = max(1, SLICE_NUMBERS // logits.shape[-1])
    if len(logits) <= rows:
        return _scores(logits, targets, temperature, with_entropy)
    parts = [
        checkpoint(_scores, some, wanted, temperature, with_entropy, use_reentrant=False)
        for some, wanted in zip(logits.split(rows), targets.split(rows), strict=True)
    ]
    chosen, entropy = zip(*parts, strict=True)
    return torch.cat(chosen), torch.cat(entropy) if with_entropy else None


def _scores(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float, with_entropy: bool
) -> tuple[torch.Tensor, torch.Tensor | None]:
    logits = logits.float()
    logprobs = torch.log_softmax(logits if temperature == 1.0 else logits / temperature, -1)
    chosen = logprobs.gather(1, targets[:, None])[:, 0]
    return chosen, entropy_of(logprobs) if with_entropy else None
