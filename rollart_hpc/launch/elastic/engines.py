"""How many elastic engines a pool should have. Owns that decision, a pure function of its inputs; starts nothing.

    turns of the pool (running + waiting) -> PoolScaler: how many engines beyond `engines`

More are requested when the turns have been too many for `settle_s`, one at a time is ended when there have been too
few for `idle_s`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rollart_hpc.config.schema import PoolElasticConfig


@dataclass
class PoolScaler:
    settings: PoolElasticConfig
    num_fixed: int  # engines of the pool that are not elastic
    turns_per_engine: int
    num: int = 0  # elastic engines wanted at the last call
    _more_since_s: float | None = None
    _fewer_since_s: float | None = None

    def __post_init__(self) -> None:
        self.num = self.settings.min

    def enough(self, turns: int) -> int:
        """How many elastic engines these turns need."""
        needed = math.ceil(turns / self.turns_per_engine) - self.num_fixed
        return min(self.settings.max, max(self.settings.min, needed))

    def wanted(self, turns: int, now: float) -> int:
        enough = self.enough(turns)
        self._more_since_s = (self._more_since_s or now) if enough > self.num else None
        self._fewer_since_s = (self._fewer_since_s or now) if enough < self.num else None
        if self._more_since_s is not None and now - self._more_since_s >= self.settings.settle_s:
            self.num, self._more_since_s = enough, None
        elif self._fewer_since_s is not None and now - self._fewer_since_s >= self.settings.idle_s:
            self.num, self._fewer_since_s = self.num - 1, None
        return self.num
