"""Which of the samples that have arrived are trained now. Owns that decision and what waits; does no I/O, no torch.

Groups arrive one by one, in any order. Trained one by one they would leave most ranks without work, so samples wait
until they make slots (see `planning`) that are full and even:

    add      a group's samples wait
    ready    slots worth training now: the plan of the whole batch must not become much better by waiting
    rest     everything else: the batch is complete

Samples are numbered as they come. Every rank has the same samples and decides the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from rollart_hpc.trainers.planning import Planner, Slot, bins_in_order, in_slots

_GOAL = 95  # percent of the whole batch's efficiency that what is trained early must leave within reach
_EVEN = 95  # percent of a slot's time that its ranks must work on average to train it early
_FULL = 90  # percent of the token budget that fill a slot

_SLOTS_PER_STAGE = 20  # a pipeline fills and drains once per call, which costs a slot per stage beyond the first


class Waiting(ABC):
    """The samples of one step."""

    def __init__(self, planner: Planner, num_stages: int) -> None:
        self._planner = planner
        self._least_slots = max(1, _SLOTS_PER_STAGE * (num_stages - 1))
        self._lengths: list[int] = []
        self._work = self._critical = 0  # of what was trained
        self.num_slots = 0

    @abstractmethod
    def add(self, lengths: Sequence[int]) -> None:
        """One group."""

    @abstractmethod
    def ready(self) -> list[Slot]:
        """Slots to train now. They don't wait any longer."""

    @abstractmethod
    def rest(self) -> list[Slot]:
        """All that waits."""

    @property
    def efficiency(self) -> float:
        """Share of the ranks' time that they have work, by the plan, in what was trained."""
        return self._work / (self._planner.ranks * self._critical) if self._critical else 1.0

    def _count(self, slots: list[Slot]) -> list[Slot]:
        self._work += sum(sum(self._planner.costs(slot, self._lengths)) for slot in slots)
        self._critical += self._planner.critical(slots, self._lengths)
        self.num_slots += len(slots)
        return slots


class Balanced(Waiting):
    """Micro-batches of any samples.

    A slot is a candidate if it is even and nothing that waits would still fit in. It is trained unless that could be
    regretted: however the batch ends, the step must take no longer than the plan of the whole batch, up to `_GOAL`.
    A few ends stand for all (`_ends`). Long samples are the worst that can come: the other ranks have work beside them
    only if enough was kept.
    """

    def __init__(self, planner: Planner, *, longest: int, num_stages: int = 1) -> None:
        super().__init__(planner, num_stages)
        self._longest = longest
        self._newest: Sequence[int] = ()  # the group that came last
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
                slots = slots[: len(slots) // 2 if len(slots) > 4 else -1]  # what is cheap in the last ones is kept
            if len(slots) < self._least_slots:
                return []
        return self._take(slots) if len(slots) >= self._least_slots else []

    def rest(self) -> list[Slot]:
        return self._take(self._plan())

    def _plan(self) -> list[Slot]:
        slots = self._planner.plan([self._lengths[i] for i in self._waiting])
        return [[[self._waiting[i] for i in members] for members in slot] for slot in slots]

    def _has_begun(self) -> bool:
        """The batch takes longer than its longest sample alone could, or there is one rank and nothing to balance."""
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
        """Lengths that may still come. One rank alone always has work and regrets nothing."""
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
    """Micro-batches of one group each, in the order in which the groups came: the same slots however a batch is cut."""

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
