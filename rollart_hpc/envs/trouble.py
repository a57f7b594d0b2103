"""Faults injected into an environment, for tests and benchmarks. Owns the faults; does not know where they run."""

from __future__ import annotations

import os
import random
import time
from typing import TYPE_CHECKING, Any

from rollart_hpc.config.schema import Latency, Trouble

if TYPE_CHECKING:
    from rollart_hpc.envs.contract import Environment, Turn

CRASH_CODE = 70


class InjectedError(Exception):
    """Raised on purpose."""


def is_quiet(trouble: Trouble) -> bool:
    return trouble == Trouble()


class Troubled:
    """An environment with the latencies and faults of its task file. The same seed gives the same faults."""

    def __init__(self, environment: Environment, trouble: Trouble) -> None:
        self._environment = environment
        self._trouble = trouble
        self._random = random.Random(0)

    def arm(self, seed: int) -> None:
        """Call before each trajectory. Members of a group share the environment's seed but not this one."""
        self._random = random.Random(seed)

    def reset(self, seed: int) -> str:
        self._wait(self._trouble.reset_latency)
        if self._happens(self._trouble.reset_failure_rate):
            raise InjectedError("injected reset failure")
        return self._environment.reset(seed)

    def step(self, response: str) -> Turn:
        self._wait(self._trouble.turn_latency)
        if self._happens(self._trouble.turn_error_rate):
            raise InjectedError("injected turn error")
        if self._happens(self._trouble.crash_rate):
            os._exit(CRASH_CODE)
        if self._happens(self._trouble.hang_rate):
            _sleep_for_ever()
        return self._environment.step(response)

    def outcome(self) -> dict[str, Any]:
        return self._environment.outcome()

    def close(self) -> None:
        self._environment.close()

    def _happens(self, rate: float) -> bool:
        return self._random.random() < rate  # draw even at rate 0, so that rates don't shift each other's draws

    def _wait(self, latency: Latency) -> None:
        seconds = self._random.gauss(latency.mean_s, latency.std_s)
        if seconds > 0:
            time.sleep(seconds)


def _sleep_for_ever() -> None:
    while True:
        time.sleep(3600)
