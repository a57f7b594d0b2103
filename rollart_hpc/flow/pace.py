"""How long workers usually take, measured over the last minutes. Owns the figures that deadlines are derived from."""

from __future__ import annotations

UNKNOWN = -1.0
WINDOW_S = 600.0  # a figure is forgotten after one to two windows


class Pace:
    """The longest time between two signs of progress of the workers that share it.

    `top` is public because every answer compares with it: `if seconds > pace.top: pace.top = seconds`.
    """

    __slots__ = ("_before", "_since_s", "top")

    def __init__(self) -> None:
        self.top = UNKNOWN
        self._before = UNKNOWN
        self._since_s = 0.0

    def slowest(self, now: float) -> float | None:
        """None: nothing was measured yet."""
        if now >= self._since_s + WINDOW_S:
            self._before, self.top, self._since_s = self.top, UNKNOWN, now
        slowest = max(self._before, self.top)
        return None if slowest == UNKNOWN else slowest
