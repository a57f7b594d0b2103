"""From logits to what a loss needs of them. Owns how much of the vocabulary's width is in memory at a time.

Log-probs of all tokens are as wide as the vocabulary, and backward wants them again: for long answers and large
vocabularies they would not fit beside the model. There they are made slice by slice, and once more in backward.
"""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint

from rollart_hpc.trainers.algorithms import entropy_of

SLICE_NUMBERS = 1 << 27  # log-probs in memory at a time: 512 MiB


def scores_of(
    logits: torch.Tensor, targets: torch.Tensor, temperature: float, *, with_entropy: bool = False
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-prob of each target at the temperature of sampling, in float32, and the entropy at its place."""
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
