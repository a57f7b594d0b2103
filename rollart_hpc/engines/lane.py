"""An engine's lane in the trace: prefill, decode, weights, wait. Owns how steps become spans; knows no engine.

One span per step would be hundreds a second. The steps of a window become two spans: first the time of steps that
prefilled, then the time of steps that only decoded. The sums are exact, the order inside a window is not.
"""

from __future__ import annotations

import time

from rollart_hpc.observe.trace import Tracer

WINDOW_S = 0.05
SHORTEST_WAIT_S = 0.001


class Lane:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._begin_s = 0.0
        self._seconds = {"prefill": 0.0, "decode": 0.0}
        self._tokens = {"prefill": 0, "decode": 0}
        self._steps = {"prefill": 0, "decode": 0}

    def step(self, start_s: float, num_prefill_tokens: int, num_decode_tokens: int) -> None:
        """Record one forward, from start_s until now."""
        now = time.monotonic()
        if not self._begin_s:
            self._begin_s = start_s
        name = "prefill" if num_prefill_tokens else "decode"
        self._seconds[name] += now - start_s
        self._steps[name] += 1
        self._tokens["prefill"] += num_prefill_tokens
        self._tokens["decode"] += num_decode_tokens
        if now - self._begin_s >= WINDOW_S:
            self.flush()

    def span(self, name: str, start_s: float, **args: object) -> None:
        """Record something other than a step, from start_s until now."""
        self.flush()
        now = time.monotonic()
        if name != "wait" or now - start_s >= SHORTEST_WAIT_S:
            self._tracer.span(name, start_s, now, **args)

    def flush(self) -> None:
        at_s = self._begin_s
        for name, seconds in self._seconds.items():
            if seconds:
                self._tracer.span(name, at_s, at_s + seconds, tokens=self._tokens[name], steps=self._steps[name])
                at_s += seconds
            self._seconds[name], self._tokens[name], self._steps[name] = 0.0, 0, 0
        self._begin_s = 0.0
