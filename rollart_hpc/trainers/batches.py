"""The samples of one optimizer update, from groups to micro-batches. Owns their counts; knows no model and no loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from rollart_hpc.trainers import packing
from rollart_hpc.trainers.algorithms import trajectory_rewards
from rollart_hpc.trainers.merging import Waiting
from rollart_hpc.trainers.packing import MicroBatch
from rollart_hpc.trainers.planning import Slot
from rollart_hpc.types import Sample, TrainGroup


@dataclass
class Counts:
    """What an update, or several, trained on."""

    tokens: int = 0  # sampled ones
    samples: int = 0
    groups: int = 0
    left_out: int = 0  # tokens
    trained: int = 0  # tokens of trained samples, observed ones too
    operations: float = 0.0  # of the models, for them
    rewards: list[float] = field(default_factory=list)  # of trajectories

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.tokens + other.tokens,
            self.samples + other.samples,
            self.groups + other.groups,
            self.left_out + other.left_out,
            self.trained + other.trained,
            self.operations + other.operations,
            self.rewards + other.rewards,
        )


class Batch:
    def __init__(self, waiting: Waiting, device: torch.device) -> None:
        self.counts = Counts()
        self.waiting = waiting
        self.num_bins = 0  # micro-batches that all replicas have trained
        self._device = device
        self.samples: list[Sample] = []  # indexed as in `waiting`
        self._weights: list[float] = []

    def add(self, group: TrainGroup, weights: Sequence[float]) -> list[int]:
        """A group with advantages, and the weight of a token of each sample. Returns the lengths of what is trained.

        A sample without sampled tokens can't be trained: skip it. Samples that shaping leaves out are counted: what is
        left must not weigh more for it.
        """
        counts = [packing.num_trainable(sample) for sample in group.samples]
        left_out = sum(count for count, sample in zip(counts, group.samples) if sample.is_left_out)
        rewards = list(trajectory_rewards(group.samples).values())
        weighed = zip(group.samples, weights, counts, strict=True)
        chosen = [(sample, weight) for sample, weight, count in weighed if count and not sample.is_left_out]
        lengths = [len(sample.record) for sample, _ in chosen]
        self.counts += Counts(
            tokens=sum(counts),
            samples=sum(count > 0 for count in counts),
            groups=1,
            left_out=left_out,
            trained=sum(lengths),
            rewards=rewards,
        )
        self.waiting.add(lengths)
        self.samples += [sample for sample, _ in chosen]
        self._weights += [weight for _, weight in chosen]
        return lengths

    def num_tokens(self, member: int) -> int:
        return packing.num_trainable(self.samples[member])

    def micros(self, slots: list[Slot], replica: int) -> list[MicroBatch]:
        """One replica's micro-batches. Every replica gets the same number of them; some may be empty."""
        return self.packed(self.bins(slots, replica))

    def bins(self, slots: list[Slot], replica: int) -> list[list[int]]:
        """The same as indices of samples."""
        self.num_bins += sum(bool(members) for slot in slots for members in slot)
        return [self._by_length(slot[replica]) for slot in slots]

    def packed(self, bins: list[list[int]]) -> list[MicroBatch]:
        return [
            packing.pack([self.samples[i] for i in members], [self._weights[i] for i in members], self._device)
            for members in bins
        ]

    def _by_length(self, members: list[int]) -> list[int]:
        """Neighbours of one length share an attention call."""
        return sorted(members, key=lambda member: len(self.samples[member].record))
