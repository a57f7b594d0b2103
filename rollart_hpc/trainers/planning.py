"""Which samples share a micro-batch, and which micro-batches run at the same time. Owns the plan; uses no torch.

    samples     A(5 tokens) B(3) C(4)       budget 8, 2 ranks
    plan        one slot: rank 0 trains [A B], rank 1 trains [C]

Ranks run a slot together, because every layer is a collective when weights are sharded. So a slot takes as long as its
most expensive micro-batch, and a plan balances operations, not tokens, over the ranks of a slot. Tokens only have to
fit the budget, which bounds memory. All numbers are integers: every rank makes the same plan from the same lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bin = list[int]  # indices of the samples of one micro-batch
Slot = list[Bin]  # one micro-batch per rank; an empty one is padding

_NO_ROOM = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Planner:
    """`even_tokens` is the length at which attention costs as much as the rest of the model (see `flops`)."""

    ranks: int
    budget: int  # maximum tokens per micro-batch; a longer sample gets its own
    even_tokens: int

    def cost(self, length: int) -> int:
        """Cost of training one sample, in an arbitrary unit. Linear layers cost n, attention costs n * n."""
        return length * (self.even_tokens + length)

    def plan(self, lengths: Sequence[int]) -> list[Slot]:
        """Place the most expensive sample first, and each where it lengthens the plan the least. Ties go to the first
        place, so slots fill up before a new one is opened. Cheap samples fill the gaps at the end."""
        bins = _Bins(self.ranks, self.budget)
        for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
            bins.put(i, lengths[i], self.cost(lengths[i]))
        return in_slots(bins.members, self.ranks)

    def critical(self, slots: Iterable[Slot], lengths: Sequence[int]) -> int:
        """Cost of a plan: the sum of the most expensive micro-batch of each slot."""
        return sum(max(self.costs(slot, lengths)) for slot in slots)

    def costs(self, slot: Slot, lengths: Sequence[int]) -> list[int]:
        return [sum(self.cost(lengths[i]) for i in members) for members in slot]


class _Bins:
    """All slots as one flat list of bins: bin b belongs to slot b // ranks."""

    def __init__(self, ranks: int, budget: int) -> None:
        self.members: list[Bin] = []
        self._ranks = ranks
        self._budget = budget
        self._tokens = self._costs = self._tops = np.zeros(0, np.int64)  # tops: the highest cost in the bin's slot

    def put(self, sample: int, length: int, cost: int) -> None:
        place = self._best(length, cost)
        if place is None:
            place = len(self.members)
            self._open_slot()
        self.members[place].append(sample)
        self._tokens[place] += length
        self._costs[place] += cost
        first = place // self._ranks * self._ranks
        tops = self._tops[first : first + self._ranks]
        np.maximum(tops, self._costs[place], out=tops)

    def _best(self, length: int, cost: int) -> int | None:
        """The best bin for a sample. None to open a new slot: no bin has room."""
        if not self.members:
            return None
        has_room = (self._tokens + length <= self._budget) | (self._tokens == 0)
        growth = np.where(has_room, np.maximum(self._costs + cost - self._tops, 0), _NO_ROOM)
        place = int(growth.argmin())
        return place if growth[place] <= cost else None

    def _open_slot(self) -> None:
        self.members += [[] for _ in range(self._ranks)]
        self._tokens, self._costs, self._tops = (
            _longer(array, self._ranks) for array in (self._tokens, self._costs, self._tops)
        )


def _longer(array: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    return np.concatenate([array, np.zeros(count, np.int64)])


def in_slots(bins: Sequence[Bin], ranks: int) -> list[Slot]:
    """Cut bins into slots, in order. The last slot is padded with empty bins."""
    slots = [list(bins[at : at + ranks]) for at in range(0, len(bins), ranks)]
    for slot in slots[-1:]:
        slot += [[] for _ in range(ranks - len(slot))]
    return slots


def bins_in_order(lengths: Sequence[int], budget: int) -> list[Bin]:
    """Bins for one group, with samples in order."""
    bins: list[Bin] = []
    load = 0
    for i, length in enumerate(lengths):
        if not bins or load + length > budget:
            bins.append([])
            load = 0
        bins[-1].append(i)
        load += length
    return bins
