"""Mutated messages for the real controller, among those of honest workers. Used by tests and by acceptance/fuzz.py.

Most mutations keep a message decodable: another value in one field, another sender, other frames, or the same message
again. The rest changes bytes. An exception of the controller is a finding; a run that ends is built anew.

Time is virtual, so a seed always gives the same findings. Honest workers answer in bursts, a little more often than
mutated messages arrive: enough for steps, checkpoints and new weights to go on among them.
"""

from __future__ import annotations

import random
import shutil
import traceback
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from rollart_hpc import __version__
from rollart_hpc.wire import messages as ms
from tests.roles.stub_run import CAST, StubRun, stub_run

INTS = [0, 1, -1, 2, 3, 7, 255, 2**31 - 1, -(2**31), 2**32, 2**63 - 1, -(2**63), 2**64 - 1]
SMALL = [0, 1, 2, 3, 4, 5]
FLOATS = [0.0, -1.0, 0.5, 1e9, 1e300, float("nan"), float("inf")]
TEXTS = [
    "",
    "a",
    "done",
    "env_error",
    "../../x",
    "a\0b",
    "x" * 300,
    "x" * 3000,
    "\u202e",
    "trainer",
    "env-0",
    "compute",
]
SIZES = [0, 1, 3, 4, 8, 16, 17, 64]
RUNS_PER_WORLD = 20_000
TICK_EVERY, TICK_S = 10, 4.0  # ticks further apart than 5 s blame nobody
TICKS = 5  # of the core, for each of the controller
ANSWERS = [0, 0, 1, 1, 2, 4]  # of honest workers, after a mutated message
RARE = 0.1
# What honest workers seldom or never say. Without Drain and TrainerAttempt: the controller obeys, and the world ends.
SELDOM: list[tuple[str, ms.Message]] = [
    *((name, ms.Hello(cast[0], name, *cast[1:], __version__, 1, "1", 1)) for name, cast in CAST.items()),
    *((name, ms.Bye("x")) for name in CAST), *((name, ms.Heartbeat(0.0)) for name in CAST),
    *((name, ms.Warned(name)) for name in CAST),
    ("engine-0", ms.PrefixMissing(1)), ("engine-1", ms.Prefilled(1, "a", "k", 1)),
    ("engine-0", ms.InstallFailed(1, 0, "x")), ("engine-0", ms.TransferFailed(1, "x")),
    ("relay-compute", ms.TransferFailed(0, "x")), ("relay-compute", ms.TransferReady(1, "h", 1, "s")),
    ("relay-compute", ms.TransferSent(1, 1, 0.1, "gloo")), ("trainer", ms.Saved(0, "")), ("trainer", ms.BatchWanted(0)),
    ("reward-0", ms.ScoreFailed("a", 0, "x")), ("supervisor", ms.Exited("env-0", "1", 1)),
    ("supervisor", ms.SaveWanted()),
]  # fmt: skip


@dataclass
class Findings:
    sent: int = 0
    decoded: int = 0  # and permitted: they reached the controller
    reached: int = 0  # became events of the core
    worlds: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    stray: Counter[str] = field(default_factory=Counter)
    steps: int = 0  # trained meanwhile

    def add(self, other: Findings) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class Fuzzer:
    def __init__(self, directory: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.findings = Findings()
        self._directory = directory
        self._stack = ExitStack()
        self._sent_here = 0
        self.world = self._build()

    def _build(self) -> StubRun:
        self._stack.close()
        path = self._directory / f"world-{self.findings.worlds % 2}"
        transport = "direct" if self.findings.worlds % 2 else "staged"
        shutil.rmtree(path, ignore_errors=True)
        self.findings.worlds += 1
        self._sent_here = 0
        world = self._stack.enter_context(stub_run(path, quarantine_after=1_000_000, transport=transport))
        world.controller.members._clock = lambda: world.now
        return world

    def close(self) -> None:
        self._leave()
        self._stack.close()

    def _leave(self) -> None:
        self.findings.refused += self.world.hub.counters
        self.findings.steps += self.world.core.version

    def run(self, number: int) -> Findings:
        with mock.patch("time.monotonic", lambda: self.world.now):
            return self._run(number)

    def _run(self, number: int) -> Findings:
        for _ in range(number):
            try:
                self._one()
            except Exception as error:
                where = traceback.extract_tb(error.__traceback__)[-1]
                self.findings.stray[f"{type(error).__name__} at {where.filename}:{where.lineno}: {error}"[:300]] += 1
                self._renew("stray exception")
            if self.world.controller.ending is not None:
                self._renew(self.world.controller.ending)
            elif self._sent_here >= RUNS_PER_WORLD:
                self._renew("age")
        return self.findings

    def _renew(self, why: str) -> None:
        self.findings.ended[why] += 1
        self._leave()
        self.world = self._build()

    def _one(self) -> None:
        world, rng, found = self.world, self.random, self.findings
        self._sent_here += 1
        if rng.random() < RARE:
            name, message = rng.choice(SELDOM)
            frames: list[bytes] = []
        else:
            name, message, frames = world.said[rng.randrange(len(world.said))]
        identity, role = world.identity(name), CAST[name][0]
        kind = rng.random()
        if kind < 0.55:
            message = self._changed(message)
        elif kind < 0.65:
            frames = self._frames(frames)
        elif kind < 0.7:
            name = rng.choice(list(CAST))
            identity, role = world.identity(name), CAST[name][0]
        header = ms.encode(message)
        if kind > 0.9:
            header = self._torn(header)
        before = world.reached
        found.sent += 1
        found.decoded += world.take(identity, role, [header, *frames])
        found.reached += world.reached > before
        world.answer(rng.choice(ANSWERS))
        if found.sent % TICK_EVERY == 0:
            self._time_passes(world)

    def _time_passes(self, world: StubRun) -> None:
        world.tick(TICK_S)
        if self.findings.sent % (TICKS * TICK_EVERY):
            return
        world.controller._tick_if_due()
        world.hub.sent.clear() if len(world.hub.sent) > 5000 else None
        for name in CAST:
            if name not in world.controller.members.alive:
                world.join(name)

    def _changed(self, message: ms.Message) -> ms.Message:
        """Another value in one field. Values of the run are more likely than foreign ones."""
        names = message.__struct_fields__
        if not names:
            return message
        name = self.random.choice(names)
        return msgspec.structs.replace(message, **{name: self._value(name, getattr(message, name))})

    def _value(self, name: str, now: Any) -> Any:
        rng, core = self.random, self.world.core
        if isinstance(now, bool):
            return not now
        if isinstance(now, int):
            if name == "request" and core.trajectories.requests and rng.random() < 0.7:
                return next(iter(core.trajectories.requests))
            near = [now, now + 1, max(0, now - 1), *SMALL]
            return rng.choice(near if rng.random() < 0.6 else INTS)
        if isinstance(now, float):
            return rng.random() if rng.random() < 0.6 else rng.choice(FLOATS)
        if isinstance(now, str):
            if name == "trajectory" and core.trajectories.all and rng.random() < 0.8:
                return next(iter(core.trajectories.all))
            return now + "x" if rng.random() < 0.3 else rng.choice(TEXTS)
        if isinstance(now, list):
            return [rng.choice([*SMALL, *INTS]) for _ in range(rng.randrange(4))]
        return {rng.choice(TEXTS): rng.choice(FLOATS) for _ in range(rng.randrange(4))}

    def _frames(self, frames: list[bytes]) -> list[bytes]:
        rng = self.random
        changed = [*frames, b""] if rng.random() < 0.2 else list(frames)
        if not changed:
            return [rng.randbytes(rng.choice(SIZES))]
        at = rng.randrange(len(changed))
        if rng.random() < 0.2:
            del changed[at]
        else:
            size = len(changed[at]) if rng.random() < 0.5 else rng.choice(SIZES)
            changed[at] = rng.randbytes(size)
        return changed

    def _torn(self, header: bytes) -> bytes:
        rng, torn = self.random, bytearray(header)
        at = rng.randrange(len(torn))
        if rng.random() < 0.7:
            torn[at] ^= 1 << rng.randrange(8)
        else:
            del torn[at : at + rng.randint(1, 3)]
        return bytes(torn)


def fuzz(directory: Path, number: int, seed: int) -> Findings:
    fuzzer = Fuzzer(directory, seed)
    try:
        return fuzzer.run(number)
    finally:
        fuzzer.close()
