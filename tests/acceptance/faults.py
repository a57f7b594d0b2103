"""Seeded runs under faults for an hour, in virtual time: the core alone, and the real controller with its files.

Seeds follow each other without a gap; each failure names its seed. `mutants.py` shows that defects would be found.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

from rollart_hpc.files import write_json
from tests.acceptance.reliability import store
from tests.faults import faulty, spoiling

PRINT_S = 60.0
CORE_RUNS = 6  # per run of the controller: it needs longer
WANTED = 100_000  # runs of all processes; on a busy machine they may take longer for it:
LONGEST = 1.05  # times the seconds that were asked for


def faults(seconds: float = 3600.0, cores: int = 1) -> bool:
    """The figures are stored as it goes on."""
    with tempfile.TemporaryDirectory(prefix="rollart-faults-", dir="/dev/shm") as scratch:
        with ProcessPoolExecutor(cores) as pool:
            each = [pool.submit(campaign, Path(scratch), seconds, seed, WANTED // cores) for seed in range(cores)]
            while wait(each, PRINT_S).not_done:
                _store(Path(scratch), cores)
        for done in each:
            done.result()
        return not _store(Path(scratch), cores)["broken"]


def _store(scratch: Path, cores: int) -> dict[str, Any]:
    parts = [json.loads(path.read_text()) for path in sorted(scratch.glob("*.json"))]
    figures = {"cores": cores, **merged(parts)} if parts else {}
    if parts:
        store("faults", figures)
    return figures


def campaign(scratch: Path, seconds: float, number: int, wanted: int = 0) -> dict[str, Any]:
    logging.disable(logging.CRITICAL)
    os.fsync = lambda _: None  # type: ignore[assignment]
    gc.freeze()  # as the controller's own main does: it collects garbage at every checkpoint
    made = Campaign(scratch / str(number), (1 + number) * 1_000_000)
    made.run(seconds, wanted)
    return made.figures


def merged(parts: list[dict[str, Any]]) -> dict[str, Any]:
    kinds: Counter[str] = Counter()
    for part in parts:
        kinds.update(part["kinds"])
    worlds = {
        name: {key: sum(part["worlds"][name][key] for part in parts) for key in ("runs", "events", "faults")}
        for name in ("core", "controller")
    }
    return {
        "seconds": max(part["seconds"] for part in parts),
        "cpu_seconds": sum(part["cpu_seconds"] for part in parts),
        "broken": [line for part in parts for line in part["broken"]],
        "kinds": dict(kinds),
        "worlds": worlds,
    }


class Campaign:
    def __init__(self, directory: Path, seed: int) -> None:
        empty = {"runs": 0, "events": 0, "faults": 0, "next_seed": seed}
        self._directory = directory
        self.figures: dict[str, Any] = {
            "seconds": 0.0, "cpu_seconds": 0.0, "broken": [], "kinds": {},
            "worlds": {"core": dict(empty), "controller": dict(empty)},
        }  # fmt: skip

    def run(self, seconds: float, wanted: int) -> None:
        began_s, told_s = time.monotonic(), 0.0
        while (spent_s := time.monotonic() - began_s) < seconds * (1.0 if self.num_runs >= wanted else LONGEST):
            for _ in range(CORE_RUNS):
                self._one("core", _core)
            self._one("controller", self._controller)
            if spent_s >= told_s + PRINT_S:
                told_s = spent_s
                self._tell(spent_s)
        self._tell(time.monotonic() - began_s)

    @property
    def num_runs(self) -> int:
        return sum(world["runs"] for world in self.figures["worlds"].values())

    def _controller(self, seed: int) -> tuple[int, Any]:
        world = spoiling.controlled(self._directory, seed)
        return world.messages, world.faults

    def _one(self, name: str, play: Callable[[int], tuple[int, Any]]) -> None:
        world, kinds = self.figures["worlds"][name], self.figures["kinds"]
        seed = world["next_seed"]
        world["next_seed"] += 1
        world["runs"] += 1
        try:
            events, done = play(seed)
        except Exception as error:
            self.figures["broken"].append(f"{name}, seed {seed}: {type(error).__name__}: {str(error)[:200]}")
            print(self.figures["broken"][-1], flush=True)
            return
        world["events"] += events
        world["faults"] += sum(done.values())
        for kind, count in done.items():
            kinds[kind] = kinds.get(kind, 0) + count

    def _tell(self, spent_s: float) -> None:
        self.figures |= {"seconds": spent_s, "cpu_seconds": time.process_time()}
        write_json(self._directory.with_suffix(".json"), self.figures)
        runs = {name: world["runs"] for name, world in self.figures["worlds"].items()}
        print(f"{spent_s:.0f} s: {runs}, {len(self.figures['broken'])} broken", flush=True)


def _core(seed: int) -> tuple[int, Any]:
    world = faulty.play(seed)
    return world.events, world.faults
