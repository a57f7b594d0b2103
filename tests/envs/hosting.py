"""The loop of an env worker without the wire: enough to drive a `Host` in tests."""

from __future__ import annotations

import selectors
import time
from collections.abc import Hashable, Sequence
from pathlib import Path

from rollart_hpc.config.schema import TaskConfig
from rollart_hpc.envs.host import Happened, Host

PATIENCE_S = 120.0
ODD = str(Path(__file__).with_name("odd.py"))


def make_task(environment: str = "Counting", **fields: object) -> TaskConfig:
    return TaskConfig(**{"name": "odd", "environment": f"{ODD}:{environment}", **fields})  # type: ignore[arg-type]


class Driver:
    def __init__(self, slots: int = 4, variables: Sequence[str] = (), **tasks: TaskConfig) -> None:
        self.selector = selectors.DefaultSelector()
        self.host = Host(self.selector, tasks, slots, variables)
        self.host.start()
        self.waiting: list[Happened] = []

    def next(self, slot: Hashable, timeout_s: float = PATIENCE_S) -> Happened:
        """What happens to `slot` next; what happens to others is kept."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            for happened in self.waiting:
                if happened.slot == slot:
                    self.waiting.remove(happened)
                    return happened
            assert time.monotonic() < deadline_s, f"nothing happens to {slot!r}"
            self.turn(deadline_s - time.monotonic())

    def turn(self, timeout_s: float) -> None:
        wait_s = self.host.wait_s()
        for key, _ in self.selector.select(timeout_s if wait_s is None else min(wait_s, timeout_s)):
            key.data()
        self.waiting += self.host.collect()

    def until_gone(self, *pids: int) -> None:
        """Until the host knows that they have ended."""
        deadline_s = time.monotonic() + PATIENCE_S
        while left := set(pids) & set(self.host.processes.pids):
            assert time.monotonic() < deadline_s, f"still running: {left}"
            self.turn(0.2)

    def reset(self, slot: Hashable, seed: int = 5, task: str = "odd") -> Happened:
        self.host.reset(slot, task, seed)
        return self.next(slot)

    def step(self, slot: Hashable, response: str) -> Happened:
        self.host.step(slot, response)
        return self.next(slot)


def alive(pid: int) -> bool:
    """Zombies are dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_dead(pids: list[int], timeout_s: float = PATIENCE_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() < deadline_s, f"still running: {left}"
        time.sleep(0.02)
