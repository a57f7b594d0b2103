"""Virtual time: a queue of what happens next. Knows nothing about what it calls."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0

    def after(self, delay_s: float, action: Callable[..., None], *args: Any) -> None:
        self._serial += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._serial, action, args))

    def run(self, until_s: float, is_over: Callable[[], Any]) -> None:
        """Until nothing is left, `is_over` holds, or time `until_s` comes."""
        queue, pop = self._queue, heapq.heappop
        while queue and queue[0][0] <= until_s:
            self.now, _, action, args = pop(queue)
            action(*args)
            if is_over():
                return
