"""Samples the next tokens, with log-probs, from a batch of logits. Owns the sampling rule; keeps no state.

Temperature only, so that the trainer can recompute the distribution. Sampling inverts the cumulative distribution at
one uniform number per token: drawing noise for the whole vocabulary costs more than the forward of a small model.
"""

from __future__ import annotations

import torch


def sample(
    logits: torch.Tensor, temperatures: torch.Tensor, uniforms: torch.Tensor | None, any_greedy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits [n, vocabulary], temperatures [n] (0 = greedy), uniforms [n] in [0, 1) -> ids [n], logprobs [n].

    `uniforms=None`: all rows are greedy. A greedy token's log-prob is the one at temperature 1.
    """
    scale = torch.where(temperatures > 0, temperatures, 1.0)
    logprobs = torch.log_softmax(logits.float() / scale[:, None], dim=-1)
    if uniforms is None:
        ids = logprobs.argmax(dim=-1)
    else:
        ids = _draw(logprobs, uniforms)
        if any_greedy:
            ids = torch.where(temperatures > 0, ids, logprobs.argmax(dim=-1))
    return ids, logprobs.gather(1, ids[:, None])[:, 0]


def _draw(logprobs: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """The first token whose cumulative probability exceeds the drawn number. It never has probability 0."""
    cumulated = logprobs.exp().cumsum(dim=-1, dtype=torch.float64)
    wanted = uniforms.double()[:, None] * cumulated[:, -1:]
    ids = torch.searchsorted(cumulated, wanted, right=True)[:, 0]
    return ids.clamp_(max=logprobs.shape[-1] - 1)
