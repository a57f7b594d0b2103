"""Samples into packed micro-batches, micro-batches onto ranks. Owns both plans; knows no model and no loss.

    samples     A(5 tokens) B(3) C(4)       budget 8, 2 ranks
    plan        rank 0: [A B]   rank 1: [C]
    packed      ids  a0 a1 a2 a3 a4 b0 b1 b2     positions 0 1 2 3 4 0 1 2     lengths [5, 3]

Every rank gets the same number of micro-batches, padded with empty ones, because with sharded weights a forward is a
collective. A plan is made from lengths alone, so all ranks make the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rollart_hpc.types import Sample, TrainGroup

Bin = list[int]  # indices of the samples of one micro-batch


@dataclass
class MicroBatch:
    """Packed samples. `keep` are the places whose logits predict a sampled token; the last four belong to those."""

    ids: torch.Tensor  # [1, tokens]
    positions: torch.Tensor  # [1, tokens]
    lengths: list[int]
    keep: torch.Tensor  # [sampled]
    targets: torch.Tensor  # [sampled]
    behaviour: torch.Tensor  # [sampled] log-probs at sampling time
    versions: torch.Tensor  # [sampled]
    advantages: torch.Tensor  # [sampled]
    weights: torch.Tensor  # [sampled]

    @property
    def num_sampled(self) -> int:
        return len(self.keep)


def num_trainable(sample: Sample) -> int:
    """Sampled tokens of a sample. Its first token has nothing before it that could predict it."""
    return int(np.count_nonzero(sample.record.sampled[1:]))


def pack(samples: Sequence[Sample], weights: Sequence[float], device: torch.device) -> MicroBatch:
    """One micro-batch of these samples in this order; an empty one holds a single token and trains nothing."""
    if not samples:
        return _empty(device)
    lengths = [len(sample.record) for sample in samples]
    places = [np.flatnonzero(sample.record.sampled[1:]) for sample in samples]
    counts = [len(p) for p in places]
    starts = np.cumsum([0, *lengths[:-1]])
    keep = np.concatenate([start + p for start, p in zip(starts, places)])
    ids = np.concatenate([sample.record.ids for sample in samples]).astype(np.int64)
    logprobs = np.concatenate([sample.record.logprobs for sample in samples])
    versions = np.concatenate([sample.record.versions for sample in samples])
    advantages = np.repeat(np.array([s.advantage for s in samples], np.float32), counts)
    return MicroBatch(
        ids=torch.from_numpy(ids)[None].to(device),
        positions=torch.from_numpy(np.concatenate([np.arange(n) for n in lengths]))[None].to(device),
        lengths=lengths,
        keep=torch.from_numpy(keep).to(device),
        targets=torch.from_numpy(ids[keep + 1]).to(device),
        behaviour=torch.from_numpy(logprobs[keep + 1]).to(device),
        versions=torch.from_numpy(versions[keep + 1]).to(device),
        advantages=torch.from_numpy(advantages).to(device),
        weights=torch.from_numpy(np.repeat(np.array(weights, np.float32), counts)).to(device),
    )


def _empty(device: torch.device) -> MicroBatch:
    none = torch.zeros(0, dtype=torch.long, device=device)
    nothing = torch.zeros(0, device=device)
    one = torch.zeros(1, 1, dtype=torch.long, device=device)
    return MicroBatch(one, one, [1], none, none, nothing, none, nothing, nothing)


# --- plans -----------------------------------------------------------------------------------


def plan(lengths: Sequence[int], budget: int, ranks: int) -> list[list[Bin]]:
    """Micro-batches of each rank, even in tokens; those with the same place on every rank are of similar size."""
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    bins = _first_fit(order, lengths, budget)
    num_bins = -(-len(bins) // ranks) * ranks
    bins = _level(order, lengths, budget, num_bins) or bins
    bins.sort(key=lambda members: -sum(lengths[i] for i in members))
    return deal(bins, ranks, first=0)


def deal(bins: Sequence[Bin], ranks: int, first: int) -> list[list[Bin]]:
    """Hand out bins in turn, beginning with rank `first`; then make all hands equally long with empty bins."""
    hands: list[list[Bin]] = [[] for _ in range(ranks)]
    for place, members in enumerate(bins, first):
        hands[place % ranks].append(members)
    longest = max(len(hand) for hand in hands)
    return [hand + [[] for _ in range(longest - len(hand))] for hand in hands]


def bins_in_order(groups: Sequence[TrainGroup], budget: int) -> list[Bin]:
    """Bins in the groups' order, none with samples of two groups: the same however a batch is cut into chunks."""
    bins: list[Bin] = []
    index = 0
    for group in groups:
        current: Bin = []
        load = 0
        for sample in group.samples:
            if current and load + len(sample.record) > budget:
                bins.append(current)
                current, load = [], 0
            current.append(index)
            load += len(sample.record)
            index += 1
        if current:
            bins.append(current)
    return bins


def _first_fit(order: Sequence[int], lengths: Sequence[int], budget: int) -> list[Bin]:
    bins: list[Bin] = []
    loads: list[int] = []
    for i in order:
        place = next((b for b, load in enumerate(loads) if load + lengths[i] <= budget), None)
        if place is None:
            bins.append([i])
            loads.append(lengths[i])
        else:
            bins[place].append(i)
            loads[place] += lengths[i]
    return bins


def _level(order: Sequence[int], lengths: Sequence[int], budget: int, num_bins: int) -> list[Bin] | None:
    """The longest sample to the emptiest bin, again and again. None if that breaks the budget."""
    bins: list[Bin] = [[] for _ in range(num_bins)]
    loads = np.zeros(num_bins, np.int64)
    for i in order:
        place = int(loads.argmin())
        if bins[place] and loads[place] + lengths[i] > budget:
            return None
        bins[place].append(i)
        loads[place] += lengths[i]
    return bins
