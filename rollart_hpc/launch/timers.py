"""Actions that are due later, for a loop around a selector. Owns when they are due; waits for nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

Action = Callable[[], None]


class Timers:
    def __init__(self) -> None:
        self._timers: list[tuple[float, Action]] = []

    def after(self, delay_s: float, action: Action) -> None:
        self._timers.append((time.monotonic() + delay_s, action))

    def next_s(self) -> float | None:
        """When the next action is due, on the monotonic clock; None: there is none."""
        return min((due_s for due_s, _ in self._timers), default=None)

    def run_due(self) -> None:
        now = time.monotonic()
        due = [action for due_s, action in self._timers if due_s <= now]
        self._timers = [timer for timer in self._timers if timer[0] > now]
        for action in due:
            action()

    def clear(self) -> None:
        self._timers.clear()
