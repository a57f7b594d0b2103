"""The real controller under the events of a simulated cluster: what thousands of GPUs would cost it, in CPU per turn.

A simulation feeds its core; every event also becomes the message that a process would send, with payloads of the right
size, and reaches a real controller (members, checks, payloads, core, journal) behind a hub without a socket. Both cores
must do the same. ZeroMQ and encryption are not in the figure: `rollart-hpc bench hub` measures them.
"""

from __future__ import annotations

import time
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from rollart_hpc import __version__
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.flow import events as ev
from rollart_hpc.flow.rules import FlowRules
from rollart_hpc.roles import controller as module
from rollart_hpc.roles.controller import Controller
from rollart_hpc.roles.start import Start
from rollart_hpc.rundir import RunDir
from rollart_hpc.simulate.cluster import NEVER_S, Cluster, Spec
from rollart_hpc.types import Frame
from rollart_hpc.vocabulary import DONE
from rollart_hpc.wire import messages as ms
from rollart_hpc.wire.hub import identity_of
from rollart_hpc.wire.keys import make_keys
from tests.roles.stub_run import StubHub

_LONGEST = 1 << 18  # tokens
_ZEROS = memoryview(bytes(4 * _LONGEST))
_VERSIONS: dict[int, memoryview] = {}


class Enough(Exception):
    """As many turns as wanted were measured."""


@dataclass
class Cost:
    """Of the controller alone, after the first `skipped` turns."""

    turns: int
    cpu_s: float
    slowest_ms: float  # one message, with all that it set off
    virtual_s: float
    messages: int

    @property
    def us_per_turn(self) -> float:
        return 1e6 * self.cpu_s / max(1, self.turns)


class Streamed:
    def __init__(self, path: Path, config: RunConfig, spec: Spec, skipped: int = 0, turns: int = 1 << 60) -> None:
        self.cluster = Cluster(spec)
        self.controller = _controller(path, _as_simulated(config, self.cluster.rules), self.now)
        assert self.controller.core.rules == self.cluster.rules, "both cores obey the same"
        self._env: dict[str, str] = {}  # who plays a trajectory, serves a request, scores
        self._engine: dict[int, tuple[str, str]] = {}
        self._reward: dict[str, str] = {}
        self._asked_again: set[str] = set()
        self._skipped, self._wanted = skipped, turns
        self._turns = self._messages = 0
        self._cpu_s = self._slowest_s = self._from_s = 0.0
        self.cluster.core.tap = self._tap

    def now(self) -> float:
        return self.cluster.clock.now

    def run(self, steps: int) -> Cost:
        with mock.patch("time.monotonic", self.now):
            with suppress(Enough):
                self.cluster.run(steps)
            virtual_s = self.now() - self._from_s
            self.controller.journal.close()
        turns = max(0, self._turns - self._skipped)
        return Cost(turns, self._cpu_s, 1000 * self._slowest_s, virtual_s, self._messages)

    def _tap(self, event: ev.Event, commands: list[ev.Command]) -> None:
        if not isinstance(event, ev.GoOn):
            self._feed(event)
        for command in commands:
            self._note(command)

    def _feed(self, event: ev.Event) -> None:
        if isinstance(event, ev.Tick):
            before_s = time.process_time()
            self.controller._next_tick = 0.0
            self.controller._tick_if_due()
        else:
            sender, message, frames = self._message(event)
            role = self.cluster.core.workers[sender].role if sender in self.cluster.core.workers else ""
            content = [ms.encode(message), *frames]
            before_s = time.process_time()
            incoming = self.controller.hub.feed(identity_of(sender, "1"), role, content)
            assert incoming is not None, dict(self.controller.hub.counters)
            self.controller._take(*incoming)
            self.controller._settle()
        self.controller._receive(0.0)
        while self.controller.core.has_backlog:
            self.controller._receive(0.0)
        self._count(event, time.process_time() - before_s)
        self.controller.hub.sent.clear()

    def _count(self, event: ev.Event, seconds: float) -> None:
        self._turns += isinstance(event, ev.Generated)
        if self._turns <= self._skipped:
            self._from_s = self.now()
            return
        self._messages += not isinstance(event, ev.Tick)
        self._cpu_s += seconds
        self._slowest_s = max(self._slowest_s, seconds)
        if self._turns >= self._skipped + self._wanted:
            raise Enough

    def _note(self, command: ev.Command) -> None:
        match command:
            case ev.Play():
                self._env[command.trajectory] = command.worker
            case ev.Generate():
                self._engine[command.request] = command.engine, command.trajectory
            case ev.Score():
                self._reward[command.trajectory] = command.worker
            case ev.AskAgain():
                self._asked_again.add(command.trajectory)

    # --- messages ----------------------------------------------------------------------------

    def _message(self, event: ev.Event) -> tuple[str, ms.Message, list[Frame]]:
        """Who sends it, what, and its payload."""
        match event:
            case ev.Joined():
                return event.worker, _hello(event), []
            case ev.TurnWanted():
                return self._turn_wanted(event)
            case ev.Generated():
                return self._generated(event)
            case ev.Ended():
                return self._ended(event)
            case ev.Scored():
                done = ms.Scored(event.trajectory, event.issue, event.reward, event.success, 0.1)
                return self._reward.pop(event.trajectory), done, []
            case ev.BatchWanted():
                return "trainer-0", ms.BatchWanted(event.version), []
            case ev.Committed():
                step = event.version - 1
                return "trainer-0", ms.Committed(step, event.version, f"d{step}", f"d{event.version}", {},
                                                 event.wait_s, event.train_s), []  # fmt: skip
            case ev.Published():
                return "trainer-0", ms.Published(*event.weights, 1, 0.1), []
            case ev.Held():
                return event.relay, ms.Held(*event.weights, 1, 0.1), []
            case ev.Installed():
                done = ms.Installed(*event.weights, event.num_bytes, event.seconds, event.exposed_s)
                return event.engine, done, []
            case ev.TransferReady():
                transfer = self.controller.core.publisher.transfer
                assert transfer is not None
                return transfer.source, ms.TransferReady(event.epoch, "h", 1, "s"), []
            case ev.Saved():
                return "trainer-0", ms.Saved(event.version, event.error), []
        raise AssertionError(f"no process says {event}")

    def _turn_wanted(self, event: ev.TurnWanted) -> tuple[str, ms.Message, list[Frame]]:
        play = self.cluster._plays[event.trajectory]
        is_full = event.turn == 0 or event.trajectory in self._asked_again
        self._asked_again.discard(event.trajectory)
        prefix = 0 if is_full else play.context
        wanted = ms.TurnWanted(event.trajectory, event.issue, event.turn, prefix, 0, event.max_new_tokens, is_full)
        return self._env[event.trajectory], wanted, [_ZEROS[: 4 * (event.num_tokens - prefix)]]

    def _generated(self, event: ev.Generated) -> tuple[str, ms.Message, list[Frame]]:
        engine, trajectory = self._engine.pop(event.request)
        size, versions = event.num_decode_tokens, _labels(event.first_version, event.num_decode_tokens)
        if event.last_version != event.first_version:
            changed = np.array(np.frombuffer(versions, np.int32))
            changed[-(size // 2 + 1) :] = event.last_version
            versions = memoryview(changed.tobytes())
        answer = ms.Generated(event.request, trajectory, event.num_prefill_tokens, size, 0.1, 0.1, 0.1, 5)
        return engine, answer, [_ZEROS[: 4 * size], _ZEROS[: 4 * size], versions]

    def _ended(self, event: ev.Ended) -> tuple[str, ms.Message, list[Frame]]:
        if event.failure is not None:
            ended = ms.Ended(event.trajectory, event.issue, event.failure, "", event.num_turns, 0, [])
            return self._env[event.trajectory], ended, []
        size = self.cluster._lengths[event.trajectory]
        first = self.controller.core.trajectories.all[event.trajectory].first_version
        ended = ms.Ended(event.trajectory, event.issue, DONE, "", event.num_turns, size, [size], 0.1, 0.1)
        arrays = [_ZEROS[: 4 * size], _ZEROS[: 4 * size], _labels(first, size)]
        return self._env[event.trajectory], ended, [b"\x80", *arrays]


def _labels(version: int, tokens: int) -> memoryview:
    if version not in _VERSIONS:
        _VERSIONS[version] = memoryview(np.full(_LONGEST, version, np.int32).tobytes())
    return _VERSIONS[version][: 4 * tokens]


def _hello(event: ev.Joined) -> ms.Hello:
    return ms.Hello(
        event.role, event.worker, event.node, event.pool, event.capacity, __version__, event.attempt, "1", 1,
        event.version, event.num_ranks, event.kv_tokens, event.speed,
    )  # fmt: skip


def _as_simulated(config: RunConfig, rules: FlowRules) -> RunConfig:
    """As `simulate.build` changes it: nothing is validated or saved, and nothing is late."""
    config = deepcopy(config)
    config.steps, config.validation.plays, config.checkpoint.every = rules.steps, 0, 0
    for name in ("turn_s", "play_s", "install_s", "stuck_s", "silence_s"):
        setattr(config.timeouts, name, NEVER_S)
    config.reward.timeout_s = NEVER_S
    return config


def _controller(path: Path, config: RunConfig, now: Any) -> Controller:
    run = RunDir(path).create()
    attempt = run.begin_attempt()
    make_keys(run.keys(attempt))
    start = Start("controller", run, config, "controller", "", attempt, "cpu", "", 0, 1, "x")
    with mock.patch.object(module, "listen", lambda *_: StubHub()), mock.patch("time.monotonic", now):
        controller = Controller(start)
    controller.members._clock = now
    return controller
