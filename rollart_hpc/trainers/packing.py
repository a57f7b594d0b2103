"""Packs samples into one micro-batch. Owns its layout; `planning` chooses the samples. Knows no model and no loss.

samples     A(5 tokens) B(3)
packed      ids  a0 a1 a2 a3 a4 b0 b1 b2     positions 0 1 2 3 4 0 1 2     lengths [5, 3]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from rollart_hpc.trainers.algorithms.plays import trainable, turn_starts
from rollart_hpc.types import Sample


@dataclass
class MicroBatch:
    """Packed samples. `keep` are positions whose logits predict sampled tokens; later fields have a value for each."""

    ids: torch.Tensor  # [1, tokens]
    positions: torch.Tensor  # [1, tokens]
    lengths: list[int]
    keep: torch.Tensor  # [sampled]
    targets: torch.Tensor  # [sampled]
    behaviour: torch.Tensor  # [sampled] log-probs at sampling time
    versions: torch.Tensor  # [sampled]
    advantages: torch.Tensor  # [sampled]
    weights: torch.Tensor  # [sampled]
    rewards: torch.Tensor  # [sampled] of their trajectories
    samples: torch.Tensor  # [sampled] number of the sample
    turns: torch.Tensor  # [sampled] number of the turn, over all samples
    num_turns: int
    returns: torch.Tensor | None = None  # [sampled] what a critic learns, if there is one
    values: torch.Tensor | None = None  # [sampled] what it said before the step
    stored: torch.Tensor | None = None  # [sampled] log-probs before the first of several updates

    @property
    def num_sampled(self) -> int:
        return len(self.keep)


def num_trainable(sample: Sample) -> int:
    """Number of sampled tokens, without the first token: no token before it predicts it."""
    return len(trainable(sample))


def pack(samples: Sequence[Sample], weights: Sequence[float], device: torch.device) -> MicroBatch:
    """One micro-batch of these samples, in order. Without samples it has a single token and trains nothing."""
    if not samples:
        return _empty(device)
    lengths = [len(sample.record) for sample in samples]
    places = [trainable(sample) for sample in samples]
    counts = [len(p) for p in places]
    starts = np.cumsum([0, *lengths[:-1]])
    keep = np.concatenate([start + p for start, p in zip(starts, places)])
    ids = np.concatenate([sample.record.ids for sample in samples]).astype(np.int64)
    logprobs = np.concatenate([sample.record.logprobs for sample in samples])
    versions = np.concatenate([sample.record.versions for sample in samples])
    advantages = [np.zeros(n, np.float32) if s.advantages is None else s.advantages for s, n in zip(samples, counts)]
    turns = np.cumsum(np.concatenate([turn_starts(p) for p in places])) - 1
    return MicroBatch(
        ids=torch.from_numpy(ids)[None].to(device),
        positions=torch.from_numpy(np.concatenate([np.arange(n) for n in lengths]))[None].to(device),
        lengths=lengths,
        keep=torch.from_numpy(keep).to(device),
        targets=torch.from_numpy(ids[keep + 1]).to(device),
        behaviour=torch.from_numpy(logprobs[keep + 1]).to(device),
        versions=torch.from_numpy(versions[keep + 1]).to(device),
        advantages=torch.from_numpy(np.concatenate(advantages)).to(device),
        weights=torch.from_numpy(np.repeat(np.array(weights, np.float32), counts)).to(device),
        rewards=torch.from_numpy(np.repeat(np.array([s.reward for s in samples], np.float32), counts)).to(device),
        samples=torch.from_numpy(np.repeat(np.arange(len(samples)), counts)).to(device),
        turns=torch.from_numpy(turns).to(device),
        num_turns=int(turns[-1]) + 1 if len(turns) else 0,
        returns=_joined([sample.returns for sample in samples], device),
        values=_joined([sample.values for sample in samples], device),
    )


def _joined(parts: Sequence[NDArray[np.float32] | None], device: torch.device) -> torch.Tensor | None:
    known = [part for part in parts if part is not None]
    return torch.from_numpy(np.concatenate(known)).to(device) if len(known) == len(parts) else None


def _empty(device: torch.device) -> MicroBatch:
    none = torch.zeros(0, dtype=torch.long, device=device)
    nothing = torch.zeros(0, device=device)
    one = torch.zeros(1, 1, dtype=torch.long, device=device)
    return MicroBatch(one, one, [1], none, none, nothing, none, nothing, nothing, nothing, none, none, 0)
