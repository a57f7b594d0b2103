"""Millions of mutated messages against real controllers. False on a stray exception.

Each seed is a sequence of messages of its own, so a finding is repeated with its seed alone.
"""

from __future__ import annotations

import gc
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count
from pathlib import Path
from typing import Any

from tests.acceptance.reliability import store
from tests.roles import fuzz as fuzzing
from tests.roles.fuzz import Findings

EACH = 50_000  # messages per seed
HALF = 0.5  # of the messages decode and reach the core


def fuzz(number: int = 10_000_000, cores: int = 1, seconds: float = 3500.0) -> bool:
    """Ends after so many messages or seconds, whatever comes first. The figures are stored as it goes on."""
    began_s, found, seeds, cpu_s = time.monotonic(), Findings(), 0, 0.0
    with ProcessPoolExecutor(cores) as pool:
        for part, spent_s in _parts(pool, cores, -(-number // EACH), began_s + seconds):
            found.add(part)
            seeds, cpu_s = seeds + 1, cpu_s + spent_s
            figures = figures_of(found, seeds, time.monotonic() - began_s, cpu_s)
            print(figures, flush=True)
            store("fuzz", figures)
    for what, times in found.stray.most_common():
        print(f"stray x{times}: {what}")
    return not found.stray and found.reached >= HALF * found.sent


def _parts(pool: ProcessPoolExecutor, cores: int, seeds: int, end_s: float) -> Iterator[tuple[Findings, float]]:
    """What each seed found, as it ends. After `end_s` no seed is begun."""
    numbers, running = count(1), set[Future[tuple[Findings, float]]]()
    left = seeds
    while left or running:
        while left and len(running) < cores:
            running.add(pool.submit(one, next(numbers)))
            left -= 1
        done, running = wait(running, return_when=FIRST_COMPLETED)
        for each in done:
            yield each.result()
        left = left if time.monotonic() < end_s else 0


def one(seed: int) -> tuple[Findings, float]:
    logging.disable(logging.CRITICAL)
    os.fsync = lambda _: None  # type: ignore[assignment]
    gc.freeze()  # as the controller's own main does: it collects garbage at every checkpoint
    began_s = time.process_time()
    with tempfile.TemporaryDirectory(prefix="rollart-fuzz-", dir="/dev/shm") as directory:
        found = fuzzing.fuzz(Path(directory), EACH, seed)
    return found, time.process_time() - began_s


def figures_of(found: Findings, seeds: int, seconds: float, cpu_s: float) -> dict[str, Any]:
    return {
        "messages": found.sent,
        "decoded and permitted": found.decoded,
        "reached the core": found.reached,
        "part that reached the core": f"{found.reached / found.sent:.1%}",
        "stray exceptions": sum(found.stray.values()),
        "controllers built": found.worlds,
        "seeds": f"1 to {seeds}",
        "seconds": round(seconds),
        "seconds of CPU": round(cpu_s),
    }
