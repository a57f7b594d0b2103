"""From the last hidden states of a transformers model to log-probs and entropies. Owns the model's head; knows no loss.

The head and the softmax run in slices (`trainers.slices`): logits of all tokens never exist.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from rollart_hpc.errors import SiteError
from rollart_hpc.trainers.algorithms import entropy_of
from rollart_hpc.trainers.slices import in_slices


class Head(NamedTuple):
    """How a model makes logits of hidden states: its last linear layer, then what some families do to its output."""

    linear: torch.nn.Linear
    factor: float = 1.0
    softcap: float = 0.0  # 0: none

    def logits(self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        found = F.linear(hidden, weight, bias)
        if self.factor != 1.0:
            found = found * self.factor
        return torch.tanh(found / self.softcap) * self.softcap if self.softcap else found


def head_of(model: PreTrainedModel) -> Head:
    linear: Any = model.get_output_embeddings()
    if not isinstance(linear, torch.nn.Linear):
        raise _unsupported(model)
    settings = model.config.get_text_config()
    factor = float(getattr(settings, "logit_scale", None) or 1.0)
    factor /= float(getattr(settings, "logits_scaling", None) or 1.0)
    return Head(linear, factor, float(getattr(settings, "final_logit_softcapping", None) or 0.0))


def scores_of(
    head: Head, hidden: torch.Tensor, targets: torch.Tensor, temperature: float, *, with_entropy: bool = False
) -> torch.Tensor:
    """[tokens, 1 or 2] in float32: log-prob of each target at this temperature, entropy of its distribution."""
    linear = head.linear
    weights = (linear.weight,) if linear.bias is None else (linear.weight, linear.bias)
    score = partial(_scores, head, temperature, with_entropy)
    return in_slices(score, hidden, targets, weights, linear.weight.shape[0])


def _scores(
    head: Head,
    temperature: float,
    with_entropy: bool,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    *weights: torch.Tensor,
) -> torch.Tensor:
    logits = head.logits(hidden, *weights).float()
    logprobs = torch.log_softmax(logits if temperature == 1.0 else logits / temperature, -1)
    chosen = logprobs.gather(1, targets[:, None])
    return torch.cat([chosen, entropy_of(logprobs)[:, None]], 1) if with_entropy else chosen


def check_head(model: PreTrainedModel, scores: torch.Tensor, logits: torch.Tensor, targets: torch.Tensor) -> None:
    """Raises if the model itself makes other log-probs than `scores_of` (temperature 1) does: a head we don't know."""
    own = torch.log_softmax(logits.float(), -1).gather(1, targets[:, None])
    if not torch.allclose(scores[:, :1], own, atol=1e-2, rtol=1e-2, equal_nan=True):
        raise _unsupported(model)


def _unsupported(model: PreTrainedModel) -> SiteError:
    what = f"{type(model).__name__} makes its logits in a way that this trainer does not support"
    return SiteError(what, "choose another model in model.path")
