"""A trainer in virtual time: the real planner decides which samples share micro-batches. Owns the samples of a step.

Chunks that arrive while it computes wait, as with a real trainer, and are planned together when it is free. While it
is free it plans anew once a few groups have come, not for each: planning is most of the cost of a simulated step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rollart_hpc.simulate.clock import Clock
from rollart_hpc.trainers.merging import Balanced
from rollart_hpc.trainers.planning import Planner, Slot


@dataclass(frozen=True)
class TrainerPace:
    planner: Planner
    longest: int  # tokens of the longest possible sample
    cost_s: float  # seconds of a micro-batch per unit of the planner's cost
    fixed_s: float  # of a step, after its last micro-batch
    num_stages: int = 1
    needs_whole_batch: bool = False
    least_groups: int = 1  # that must have come before it plans anew
    token_s: float = 0.0  # measured: seconds per token, whatever the plan; 0 = by cost


class SimTrainer:
    def __init__(self, clock: Clock, pace: TrainerPace, on_step: Callable[[], None]) -> None:
        self.train_s = 0.0
        self.tokens = 0
        self.steps: list[tuple[float, float, float]] = []  # began, ended, packing efficiency
        self._clock, self._pace, self._on_step = clock, pace, on_step
        self._inbox: list[list[int]] = []
        self._is_last = self._is_busy = False
        self._clear()

    def _clear(self) -> None:
        self._lengths: list[int] = []
        self._waiting = Balanced(self._pace.planner, longest=self._pace.longest, num_stages=self._pace.num_stages)

    def take(self, groups: list[list[int]], *, last: bool) -> None:
        """Groups as the lengths of their samples."""
        self._inbox += groups
        self._is_last = last
        if not self._is_busy:
            self._go_on()

    def _go_on(self) -> None:
        self._is_busy = False
        is_early = len(self._inbox) < self._pace.least_groups or self._pace.needs_whole_batch
        if is_early and not self._is_last:
            return
        groups, self._inbox = self._inbox, []
        for group in groups:
            self._waiting.add(group)
            self._lengths += group
            self.tokens += sum(group)
        slots = self._waiting.rest() if self._is_last else self._waiting.ready()
        seconds = self._seconds(slots, groups)
        self._is_busy = True
        if self._is_last:
            self._is_last = False
            self._clock.after(seconds + self._pace.fixed_s, self._step, self._clock.now, seconds)
        else:
            self._clock.after(seconds, self._resume, seconds)

    def _seconds(self, slots: list[Slot], groups: list[list[int]]) -> float:
        if self._pace.token_s:
            return self._pace.token_s * sum(map(sum, groups))
        return self._pace.cost_s * self._pace.planner.critical(slots, self._lengths)

    def _resume(self, seconds: float) -> None:
        self.train_s += seconds
        self._go_on()

    def _step(self, began_s: float, seconds: float) -> None:
        self.train_s += seconds + self._pace.fixed_s
        self.steps.append((began_s, self._clock.now, self._waiting.efficiency))
        self._clear()
        self._is_busy = False
        self._on_step()
