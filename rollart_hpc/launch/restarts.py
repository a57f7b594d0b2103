"""Restart budgets: how many restarts, and after which delays. Starts nothing and reads no clock."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_DELAY_S = 0.25
LONGEST_DELAY_S = 30.0
STABLE_S = 300.0  # a process that lived this long gets its full budget back


def delay_s(count: int) -> float:
    """The delay before the `count`-th restart in a row (1, 2, ...), doubled each time."""
    return float(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (count - 1)))


@dataclass
class RoleBudget:
    """Restarts of single processes."""

    per_role: int
    _used: dict[str, int] = field(default_factory=dict)

    def next_delay_s(self, name: str, lived_s: float) -> float | None:
        """Seconds to wait before `name` is restarted; None: the budget is used up."""
        used = 0 if lived_s >= STABLE_S else self._used.get(name, 0)
        if used >= self.per_role:
            return None
        self._used[name] = used + 1
        return delay_s(used + 1)

    def give_back(self, name: str) -> None:
        """Its last restart was not needed."""
        self._used[name] = max(0, self._used.get(name, 0) - 1)


@dataclass
class RestoreBudget:
    """Restores of the run from its newest checkpoint. A newer checkpoint refills the budget."""

    attempts: int
    _used: int = 0
    _num_known: int = 0
    _step: int = -1
    _highest: int = -1

    def next_delay_s(self, newest_step: int, is_known: bool = False) -> float | None:
        """Seconds to wait; None: give up. `newest_step`: step of the checkpoint to restore, -1 if there is none.

        `is_known`: the process gave the cause itself (a damaged checkpoint, a lost peer). The first time may be
        another process's fault; the second time is final. An older checkpoint than before means that a damaged one was
        set aside, which takes care of the cause but does not refill the budget.
        """
        if newest_step > self._highest:
            self._highest, self._used = newest_step, 0
        if newest_step != self._step:
            self._step, self._num_known = newest_step, 0
        self._num_known += is_known
        if self._used >= self.attempts or self._num_known > 1:
            return None
        self._used += 1
        return delay_s(self._used)
