"""Elastic reward workers as local processes. Owns their names and knows which are alive."""

from __future__ import annotations

from itertools import count

from rollart_hpc.config.schema import ElasticConfig
from rollart_hpc.hardware import CPU
from rollart_hpc.launch.crew import Crew
from rollart_hpc.launch.plan import Proc
from rollart_hpc.launch.process import Child

PREFIX = "reward-elastic-"


class LocalWorkers:
    num_pending = 0  # local processes start at once

    def __init__(self, crew: Crew, settings: ElasticConfig) -> None:
        self._crew, self._settings = crew, settings
        self._numbers = count()

    def request(self, count: int) -> None:
        for _ in range(count):
            proc = Proc(f"{PREFIX}{next(self._numbers)}", "reward", CPU, CPU)
            self._crew.start(proc, "--idle-s", str(self._settings.idle_s))

    @property
    def num_requested(self) -> int:
        return sum(is_elastic(child) for child in self._crew.of("reward"))

    def failures(self) -> list[str]:
        """Always empty: the supervisor sees how its children end."""
        return []

    def worker_left(self) -> None:
        pass

    def cancel_pending(self) -> None:
        pass

    def end(self) -> None:
        """Does nothing: the crew ends them with all other processes."""


def is_elastic(child: Child) -> bool:
    return child.name.startswith(PREFIX)
