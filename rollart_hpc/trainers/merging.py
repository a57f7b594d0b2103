"""Which samples to train now and which to keep waiting. Owns that decision; does no I/O and uses no torch.

Groups arrive one by one, in any order. Training each group by itself would leave most ranks idle. So samples wait until
they fill slots (see `planning`) with equal work for every rank:

    add      a group arrives and its samples wait
    ready    slots to train now, if waiting for more samples would not make the step much faster
    rest     the batch is complete: slots of all remaining samples

Samples are numbered in order of arrival. Every rank has the same samples and makes the same decision.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from rollart_hpc.trainers.planning import Planner, Slot, bins_in_order, in_slots

_GOAL = 95  # percent of the whole batch's efficiency that must stay possible when slots are trained early
_EVEN = 95  # percent of a slot's time that ranks are busy on average; a slot below this is not trained early
_FULL = 90  # percent of the token budget from which on a slot counts as full

_SLOTS_PER_STAGE = 20  # filling and draining a pipeline costs each call one slot per stage after the first


class Waiting(ABC):
    """The samples of one step that are not trained yet."""

    def __init__(self, planner: Planner, num_stages: int) -> None:
        self._planner = planner
        self._least_slots = max(1, _SLOTS_PER_STAGE * (num_stages - 1))
        self._lengths: list[int] = []
        self._work = self._critical = 0  # of the slots trained so far
        self.num_slots = 0

    @abstractmethod
    def add(self, lengths: Sequence[int]) -> None:
        """Add a group, as the lengths of its samples."""

    @abstractmethod
    def ready(self) -> list[Slot]:
        """Remove and return the slots to train now."""

    @abstractmethod
    def rest(self) -> list[Slot]:
        """Remove and return slots of all samples that wait."""

    @property
    def efficiency(self) -> float:
        """Planned share of time that ranks are busy, over the slots trained so far."""
        return self._work / (self._planner.ranks * self._critical) if self._critical else 1.0

    def _count(self, slots: list[Slot]) -> list[Slot]:
        self._work += sum(sum(self._planner.costs(slot, self._lengths)) for slot in slots)
        self._critical += self._planner.critical(slots, self._lengths)
        self.num_slots += len(slots)
        return slots


class Balanced(Waiting):
    """Micro-batches that mix samples of all groups.

    A slot is a candidate if its ranks have equal work and no waiting sample still fits. It is trained unless that could
    be a mistake: whatever arrives later, the efficiency of the step must reach `_GOAL` percent of that of one plan for
    the whole batch. `_ends` lists the few cases that are tried. Long samples are the worst case: while one rank trains
    a long sample, the others are busy only if enough short samples were kept.
    """

    def __init__(self, planner: Planner, *, longest: int, num_stages: int = 1) -> None:
        super().__init__(planner, num_stages)
        self._longest = longest
        self._newest: Sequence[int] = ()  # the group that arrived last
        self._waiting: list[int] = []

    def add(self, lengths: Sequence[int]) -> None:
        self._waiting += range(len(self._lengths), len(self._lengths) + len(lengths))
        self._lengths += lengths
        self._newest = lengths

    def ready(self) -> list[Slot]:
        slots = self._candidates() if self._has_begun() else []
        for end in self._ends() if slots else []:
            whole = self._time([*self._lengths, *end])
            while slots and self._regrets(slots, end, whole):
                slots = slots[: len(slots) // 2 if len(slots) > 4 else -1]  # the last, cheapest slots wait
            if len(slots) < self._least_slots:
                return []
        return self._take(slots) if len(slots) >= self._least_slots else []

    def rest(self) -> list[Slot]:
        return self._take(self._plan())

    def _plan(self) -> list[Slot]:
        slots = self._planner.plan([self._lengths[i] for i in self._waiting])
        return [[[self._waiting[i] for i in members] for members in slot] for slot in slots]

    def _has_begun(self) -> bool:
        """The batch already takes longer than the longest possible sample, or there is only one rank."""
        work = sum(self._planner.cost(length) for length in self._lengths)
        return self._planner.ranks == 1 or work >= self._planner.ranks * self._planner.cost(self._longest)

    def _candidates(self) -> list[Slot]:
        slots = self._plan()
        return [slot for slot in slots if self._is_even(slot) and (slot is not slots[-1] or self._is_full(slot))]

    def _is_even(self, slot: Slot) -> bool:
        costs = self._planner.costs(slot, self._lengths)
        return 100 * sum(costs) >= _EVEN * len(costs) * max(costs)

    def _is_full(self, slot: Slot) -> bool:
        num_tokens = sum(self._lengths[i] for members in slot for i in members)
        return 100 * num_tokens >= _FULL * self._planner.ranks * self._planner.budget

    def _ends(self) -> list[list[int]]:
        """Lengths that may still arrive, by case. A single rank is never idle, so it has no cases."""
        longest, ranks = self._longest, self._planner.ranks
        if ranks == 1:
            return []
        half = longest // 2 + 1
        return [[longest, *self._newest], [longest], [longest, half], [longest] * (ranks // 2), [*self._newest]]

    def _regrets(self, slots: list[Slot], end: list[int], whole: int) -> bool:
        chosen = _samples(slots)
        left = [self._lengths[i] for i in self._waiting if i not in chosen]
        time = self._critical + self._planner.critical(slots, self._lengths) + self._time([*left, *end])
        return _GOAL * time > 100 * whole

    def _time(self, lengths: Sequence[int]) -> int:
        return self._planner.critical(self._planner.plan(lengths), lengths)

    def _take(self, slots: list[Slot]) -> list[Slot]:
        chosen = _samples(slots)
        self._waiting = [i for i in self._waiting if i not in chosen]
        return self._count(slots)


class InOrder(Waiting):
    """Micro-batches of one group each, in order of arrival. The slots do not depend on how a batch was cut."""

    def __init__(self, planner: Planner, *, num_stages: int = 1) -> None:
        super().__init__(planner, num_stages)
        self._bins: list[list[int]] = []

    def add(self, lengths: Sequence[int]) -> None:
        first = len(self._lengths)
        self._lengths += lengths
        self._bins += [[first + i for i in members] for members in bins_in_order(lengths, self._planner.budget)]

    def ready(self) -> list[Slot]:
        num_slots = len(self._bins) // self._planner.ranks
        return self._take(num_slots * self._planner.ranks) if num_slots >= self._least_slots else []

    def rest(self) -> list[Slot]:
        return self._take(len(self._bins))

    def _take(self, count: int) -> list[Slot]:
        taken, self._bins = self._bins[:count], self._bins[count:]
        return self._count(in_slots(taken, self._planner.ranks))


def _samples(slots: list[Slot]) -> set[int]:
    return {i for slot in slots for members in slot for i in members}
