"""Millions of mutated messages against the real controller, in one process. False on a stray exception."""

from __future__ import annotations

import gc
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.acceptance.reliability import store
from tests.roles.fuzz import Findings, Fuzzer

CHUNK = 100_000
HALF = 0.5  # of the messages decode and reach the core


def fuzz(number: int = 10_000_000, seconds: float = 3500.0, seed: int = 1) -> bool:
    """Ends after so many messages or seconds, whatever comes first. The figures are stored as it goes on."""
    logging.disable(logging.CRITICAL)
    os.fsync = lambda _: None  # type: ignore[assignment]
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rollart-fuzz-", dir="/dev/shm") as directory:
        fuzzer = Fuzzer(Path(directory), seed)
        found = fuzzer.findings
        gc.freeze()  # as the controller's own main does: it collects garbage at every checkpoint
        while found.sent < number and time.monotonic() < began_s + seconds:
            fuzzer.run(min(CHUNK, number - found.sent))
            figures = figures_of(found, seed, time.monotonic() - began_s)
            print(figures, flush=True)
            store("fuzz", figures)
        fuzzer.close()
    for what, count in found.stray.most_common():
        print(f"stray x{count}: {what}")
    return not found.stray and found.reached >= HALF * found.sent


def figures_of(found: Findings, seed: int, seconds: float) -> dict[str, Any]:
    return {
        "messages": found.sent,
        "decoded and permitted": found.decoded,
        "reached the core": found.reached,
        "part that reached the core": f"{found.reached / found.sent:.1%}",
        "stray exceptions": sum(found.stray.values()),
        "controllers built": found.worlds,
        "seed": seed,
        "seconds": round(seconds),
    }
