"""Turns between a Ray driver and its actors, of the sizes that `rollart-hpc bench hub` has. Prints a line of JSON.

    python ray_exchange.py ACTORS IN_FLIGHT [SECONDS]

Runs in an environment of its own that has Ray and nothing of ours.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import ray

PROMPT, ANSWER = bytes(1024), [bytes(256)] * 3  # ids, log-probs and versions of 64 tokens
SHARE = 10  # of the turns in flight is collected at a time


@ray.remote(num_cpus=1)
class Engine:
    def generate(self, prompt: bytes) -> list[bytes]:
        assert len(prompt) == len(PROMPT)
        return ANSWER


class Driver:
    """Turns in flight, and when each was due."""

    def __init__(self, actors: list[Any], num_slots: int) -> None:
        self.latencies_s: list[float] = []
        self._actors = actors
        self._idle: deque[int] = deque(range(num_slots))
        self._flying: dict[Any, tuple[int, float]] = {}

    def ask(self, due_s: float) -> None:
        slot = self._idle.popleft()
        self._flying[self._actors[slot % len(self._actors)].generate.remote(PROMPT)] = slot, due_s

    def collect(self, num: int, timeout_s: float) -> None:
        done, _ = ray.wait(list(self._flying), num_returns=min(num, len(self._flying)), timeout=timeout_s)
        ray.get(done)
        now = time.monotonic()
        for answer in done:
            slot, due_s = self._flying.pop(answer)
            self.latencies_s.append(now - due_s)
            self._idle.append(slot)

    def saturate(self, seconds: float) -> None:
        """Every slot asks again as soon as it has its answer."""
        end_s = time.monotonic() + seconds
        while (now := time.monotonic()) < end_s:
            while self._idle:
                self.ask(now)
            self.collect(len(self._flying) // SHARE, 1.0)

    def pace(self, rate: float, seconds: float) -> None:
        """Turns are due at fixed times; their latency counts from there."""
        due_s = time.monotonic()
        end_s = due_s + seconds
        while (now := time.monotonic()) < end_s:
            while self._idle and due_s <= now:
                self.ask(due_s)
                due_s += 1 / rate
            if self._flying:
                self.collect(len(self._flying), 0.001)


def cpu_s() -> float:
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def p99_ms(latencies_s: list[float]) -> float:
    return 1000 * sorted(latencies_s)[int(0.99 * (len(latencies_s) - 1))]


def measure(actors: list[Any], num_slots: int, seconds: float) -> dict[str, float]:
    driver = Driver(actors, num_slots)
    driver.saturate(1.0)
    driver.latencies_s.clear()
    began_s, began_cpu_s = time.monotonic(), cpu_s()
    driver.saturate(seconds)
    took_s, took_cpu_s, turns = time.monotonic() - began_s, cpu_s() - began_cpu_s, len(driver.latencies_s)
    saturated_ms = p99_ms(driver.latencies_s)
    driver.collect(num_slots, 60.0)
    driver.pace(turns / took_s / 2, 1.0)
    driver.latencies_s.clear()
    driver.pace(turns / took_s / 2, seconds)
    return {
        "turns_per_s": turns / took_s,
        "cpu_us_per_turn": 1e6 * took_cpu_s / turns,
        "p99_ms": p99_ms(driver.latencies_s),
        "p99_saturated_ms": saturated_ms,
    }


def main(num_actors: str, num_slots: str, seconds: str = "10") -> None:
    ray.init(num_cpus=int(num_actors), include_dashboard=False, log_to_driver=False)
    actors = [Engine.remote() for _ in range(int(num_actors))]
    ray.get([actor.generate.remote(PROMPT) for actor in actors])
    figures: dict[str, Any] = {"version": ray.__version__, "seconds": float(seconds)}
    figures["payload"] = f"{len(PROMPT)} B to the actor, {sum(map(len, ANSWER))} B back."
    figures |= measure(actors, int(num_slots), float(seconds))
    ray.shutdown()
    print(json.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
