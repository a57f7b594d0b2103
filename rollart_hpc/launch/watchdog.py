"""Detects a run that has stopped making progress. Owns the two timeouts; gets the time and the controller's reports."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rollart_hpc.config.schema import TimeoutConfig
from rollart_hpc.launch.plan import Proc
from rollart_hpc.wire.messages import Progress


@dataclass
class Watchdog:
    """`start_s` for all processes that were started to join, then `idle_s` between two changes of the progress
    counter."""

    timeouts: TimeoutConfig
    _since_s: float = 0.0
    _progress: int | None = None
    _wanted: dict[str, str] = field(default_factory=dict)  # role by name; of the trainer, only rank 0 joins
    _missing: dict[str, int] = field(default_factory=dict)
    _started: bool = False

    def reset(self, now: float) -> None:
        """A new attempt starts."""
        self._since_s, self._progress, self._started = now, None, False
        self._wanted, self._missing = {}, {}

    def expect(self, proc: Proc) -> None:
        """This process was started."""
        if proc.rank == 0:
            self._wanted[proc.name] = proc.role

    def excuse(self, proc: Proc) -> None:
        """The run continues without this process."""
        self._wanted.pop(proc.name, None)

    def touch(self, now: float) -> None:
        """Progress outside the controller, e.g. a process was restarted."""
        self._since_s = now

    def see(self, told: Progress, now: float) -> None:
        """A report from the controller of this attempt."""
        if told.progress != self._progress:
            self._progress = told.progress
            if self._started:
                self._since_s = now
        if not self._started and self._wanted:
            self._missing = self._still_missing(told)
            if not self._missing:
                self._started, self._since_s = True, now

    def verdict(self, now: float) -> str:
        """Why the run must be ended; empty if it is fine."""
        waited_s = now - self._since_s
        if not self._started and waited_s > self.timeouts.start_s:
            missing = ", ".join(f"{count} {role}" for role, count in (self._missing or self._by_role()).items())
            return f"not all roles joined within timeouts.start_s = {self.timeouts.start_s:g} s (missing: {missing})"
        if self._started and waited_s > self.timeouts.idle_s:
            return f"no progress for timeouts.idle_s = {self.timeouts.idle_s:g} s"
        return ""

    def _still_missing(self, told: Progress) -> dict[str, int]:
        left = {role: count - told.alive.get(role, 0) for role, count in self._by_role().items()}
        return {role: count for role, count in left.items() if count > 0}

    def _by_role(self) -> Counter[str]:
        return Counter(self._wanted.values())
