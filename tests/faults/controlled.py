"""The real controller in virtual time, behind a hub without a socket, with workers that answer as real ones do.

Owns the simulated processes, their messages with real payloads, the supervisor and the run directory (in memory).
What goes wrong, and what must hold: `tests/faults/spoiling.py`.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from rollart_hpc import __version__, checkpoint_dirs
from rollart_hpc.config.schema import CheckpointConfig, FlowConfig, RunConfig, TaskConfig, ValidationConfig
from rollart_hpc.roles import controller as module
from rollart_hpc.roles.controller import Controller
from rollart_hpc.roles.start import Start
from rollart_hpc.rundir import TRAINER_PART, RunDir
from rollart_hpc.types import Frame
from rollart_hpc.wire import messages as ms
from rollart_hpc.wire.hub import identity_of
from rollart_hpc.wire.keys import make_keys
from tests.roles.stub_run import StubHub

TICK_S, BEAT_S, SILENCE_S = 0.2, 2.0, 20.0
TOKENS, PROMPT = 4, 2
VOCABULARY = 100
Say = tuple[ms.Message, list[bytes]]


@dataclass
class Proc:
    """A process. `life` numbers its incarnations."""

    name: str
    role: str
    node: str
    pool: str = ""
    capacity: int = 8
    life: int = 0
    is_up: bool = False
    is_hung: bool = False
    cut: str = ""  # the direction that does not work: "to" or "from"
    installed: int = -1
    cancelled: set[tuple[str, int]] = field(default_factory=set)


class Controlled:
    def __init__(self, path: Path, seed: int) -> None:
        self.random = rng = random.Random(seed)
        self.seed, self.now, self.ended = seed, 0.0, ""
        self.faults: Counter[str] = Counter()
        self.messages = 0
        self.config = make_config(rng)
        self.run_dir = RunDir(path).create()
        self.procs = {proc.name: proc for proc in cast_of(rng)}
        self.weights, self.digest = (1, 0), "base"  # of the trainer: attempt and version
        self.records: dict[tuple[str, int], list[list[bytes]]] = {}  # what each play has sampled
        self.batch: list[tuple[ms.ChunkItem, list[bytes]]] = []
        self.is_training = False
        self.trained: list[tuple[int, ms.ChunkItem]] = []  # step and item of every batch that was committed
        self.spoil: Callable[[Proc, Say], list[Say]] = lambda proc, say: [say]
        self.said: list[tuple[Proc, Say]] = []  # lately
        self.save_fails = 0.0
        self.failed_saves = 0  # in a row: the run may end after `checkpoint.tries`
        self.on_tick: list[Callable[[Controlled], None]] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()
        self.attempt, self.serving = 0, 0
        self.restart_controller()

    # --- time ----------------------------------------------------------------------------------

    def clock(self) -> float:
        return self.now

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now + delay_s, next(self._serial), action))

    def run(self, until_s: float) -> str:
        self.after(0.0, self._tick)
        with mock.patch("time.monotonic", self.clock):
            while self._queue and not self.ended and self._queue[0][0] <= until_s:
                when, _, action = heapq.heappop(self._queue)
                self.now = max(self.now, when)  # the clock may have jumped beyond it
                action()
        return self.ended

    def _tick(self) -> None:
        self.controller._next_tick = 0.0
        self.controller._receive(0.0)
        self.controller._tick_if_due()
        self._pass_on()
        for check in self.on_tick:
            check(self)
        self.after(TICK_S, self._tick)

    # --- processes -----------------------------------------------------------------------------

    def restart_controller(self) -> None:
        """All processes are new ones of the next attempt, from the newest checkpoint."""
        if self.attempt:
            self.controller.journal.close()
            checkpoint_dirs.sweep(self.run_dir)
        self.attempt = self.serving = self.run_dir.begin_attempt()
        make_keys(self.run_dir.keys(self.attempt))
        newest = self.run_dir.newest_checkpoint()
        start = Start("controller", self.run_dir, self.config, "controller", "", self.attempt, "cpu", "", 0, 1, "x",
                      checkpoint=newest.path if newest else None)  # fmt: skip
        with mock.patch.object(module, "listen", lambda *_: StubHub()), mock.patch("time.monotonic", self.clock):
            self.controller = Controller(start)
        self.controller.members._clock = self.clock
        self.controller.checks._vocabulary = VOCABULARY
        self.hub, self.core = self.controller.hub, self.controller.core
        for proc in self.procs.values():
            proc.is_up = False
            self.after(self.random.uniform(0.01, 1.0), lambda proc=proc, at=self.attempt: self.start(proc, at))

    def start(self, proc: Proc, attempt: int) -> None:
        if proc.is_up or attempt != self.attempt or self.ended:
            return
        proc.is_up, proc.life, proc.is_hung, proc.cut, proc.installed = True, proc.life + 1, False, "", -1
        self.say_hello(proc)
        self._beat(proc, proc.life)

    def say_hello(self, proc: Proc) -> None:
        version = -1
        if proc.role == "trainer":
            version = self._restore()
        hello = ms.Hello(proc.role, proc.name, proc.node, proc.pool, proc.capacity, __version__, self.serving_of(proc),
                         str(proc.life), 1, version=version)  # fmt: skip
        self.arrive(proc, hello, [])
        if proc.role == "trainer":
            self.batch, self.is_training = [], False
            self.publish(proc)

    def serving_of(self, proc: Proc) -> int:
        return self.serving if proc.role == "trainer" else self.attempt

    def _restore(self) -> int:
        newest = self.run_dir.newest_checkpoint()
        version = newest.step if newest else 0
        self.weights = (self.serving, version)
        self.digest = (newest.path / TRAINER_PART / "weights").read_text() if newest else "base"
        return version

    def publish(self, proc: Proc) -> None:
        self.say(proc, 0.01, ms.Published(*self.weights, 1, 0.1))
        self.say(proc, 0.02, ms.BatchWanted(self.weights[1]))

    def kill(self, name: str, back_after_s: float) -> None:
        proc = self.procs[name]
        if not proc.is_up or self.ended or name == "supervisor" or not self.procs["supervisor"].is_up:
            return
        proc.is_up = False
        supervisor = self.procs["supervisor"]
        if supervisor.name not in self.controller.members.alive:  # it says hello, and its last attempt, again
            self.reconnect(supervisor, supervisor.life)
        self.arrive(supervisor, ms.Exited(name, str(proc.life), -9), [])
        if proc.role == "trainer":
            self.serving += 1
            self.arrive(supervisor, ms.TrainerAttempt(self.serving), [])
        self.after(back_after_s, lambda at=self.attempt: self.start(proc, at))

    def reconnect(self, proc: Proc, life: int) -> None:
        """Its connection broke and it says hello again. It has dropped what it was doing."""
        if proc.is_up and proc.life == life and proc.role != "trainer":
            proc.cut, proc.life, proc.installed = "", proc.life + 1, -1
            self.say_hello(proc)
            self._beat(proc, proc.life)

    def _beat(self, proc: Proc, life: int) -> None:
        if proc.is_up and proc.life == life and not self.ended:
            if proc.cut != "from":
                self.arrive(proc, ms.Heartbeat(self.now), [])
            self.after(BEAT_S, lambda: self._beat(proc, life))

    # --- messages ------------------------------------------------------------------------------

    def say(self, proc: Proc, delay_s: float, message: ms.Message, *frames: bytes) -> None:
        """An answer of this life of the process, spoilt on its way if the run is so."""
        life = proc.life

        def arrive() -> None:
            if proc.is_up and proc.life == life and not proc.is_hung and proc.cut != "from":
                for each, its_frames in self.spoil(proc, (message, list(frames))):
                    self.arrive(proc, each, its_frames)
                self.said = [*self.said[-60:], (proc, (message, list(frames)))]

        self.after(delay_s, arrive)

    def arrive(self, proc: Proc, message: ms.Message, frames: list[bytes]) -> None:
        self.take(identity_of(proc.name, str(proc.life)), proc.role, [ms.encode(message), *frames])

    def take(self, identity: bytes, role: str, parts: list[bytes]) -> None:
        if self.ended:
            return
        self.messages += 1
        incoming = self.hub.feed(identity, role, parts)
        if incoming is not None:
            self.controller._take(*incoming)
            self.controller._settle()
            self.controller._receive(0.0)
        self._pass_on()

    def _pass_on(self) -> None:
        """What the controller sent reaches the processes, which begin to work on it."""
        sent = self.hub.sent
        while sent:
            identity, message, frames = sent.popleft()
            name, _, incarnation = identity.decode().partition("#")
            proc = self.procs.get(name)
            if proc is None or not proc.is_up or incarnation != str(proc.life) or proc.is_hung or proc.cut == "to":
                continue
            handler = getattr(self, f"_on_{type(message).__name__}", None)
            if handler is not None:
                handler(proc, message, frames)
        if self.controller.ending is not None and not self.ended:
            self.ended = str(self.controller.ending)

    # --- what processes do ---------------------------------------------------------------------

    def _soon(self, rate: float) -> float:
        return self.random.expovariate(rate)

    def _on_WhoAreYou(self, proc: Proc, m: ms.WhoAreYou, frames: Any) -> None:
        self.after(0.1, lambda life=proc.life: self.reconnect(proc, life))

    def _on_Refused(self, proc: Proc, m: ms.Refused, frames: Any) -> None:
        raise AssertionError(f"{proc.name} was refused: {m.reason}")

    def _on_Silent(self, proc: Proc, m: ms.Silent, frames: Any) -> None:
        """The supervisor ends it and starts it again."""
        found = self.procs.get(m.name)
        if found is not None and str(found.life) == m.incarnation:
            self.kill(m.name, self.random.uniform(0.1, 2.0))

    def _on_Play(self, proc: Proc, m: ms.Play, frames: Any) -> None:
        self.records[m.trajectory, m.issue] = []
        self.say(proc, self._soon(20), ms.TurnWanted(m.trajectory, m.issue, 0, 0, 0, TOKENS, True), bytes(4 * PROMPT))

    def _on_Cancel(self, proc: Proc, m: ms.Cancel, frames: Any) -> None:
        proc.cancelled.add((m.trajectory, m.issue))

    def _on_Resend(self, proc: Proc, m: ms.Resend, frames: Any) -> None:
        tokens = (PROMPT + TOKENS) * m.turn + PROMPT
        self.say(proc, 0.01, ms.TurnWanted(m.trajectory, m.issue, m.turn, 0, 0, TOKENS, True), bytes(4 * tokens))

    def _on_Generate(self, proc: Proc, m: ms.Generate, frames: Any) -> None:
        began = proc.installed
        assert all(len(frame) % 4 == 0 for frame in frames), "an engine can't read these tokens"
        if not m.full and self.random.random() < 0.05:
            self.say(proc, 0.01, ms.PrefixMissing(m.request))
            return
        delay_s, life = self._soon(10), proc.life

        def finish() -> None:
            if proc.life == life:
                versions = [began] * 2 + [proc.installed] * 2  # weights may have come while it decoded
                self.say(proc, 0.0, ms.Generated(m.request, m.trajectory, PROMPT, TOKENS, 0.1, 0.1, 0.1, 5),
                         *arrays(versions))  # fmt: skip

        self.after(delay_s, finish)

    def _on_Generated(self, proc: Proc, m: ms.Generated, frames: Any) -> None:
        found = self.core.trajectories.all.get(m.trajectory)
        if found is None or (m.trajectory, found.issue) not in self.records:
            return
        issue, record = found.issue, self.records[m.trajectory, found.issue]
        record.append([bytes(frame) for frame in frames])
        delay_s, turn = self._soon(20), len(record)
        if turn < 1 + self.seed_of(m.trajectory) % 3:
            prefix = (PROMPT + TOKENS) * turn
            wanted = ms.TurnWanted(m.trajectory, issue, turn, prefix, 0, TOKENS, False)
            self.say(proc, delay_s, wanted, bytes(4 * PROMPT))
            return
        joined = [b"".join(parts) for parts in zip(*record)]
        length = len(joined[0]) // 4
        ended = ms.Ended(m.trajectory, issue, "done", "", turn, length, [length], 0.1, 0.1)
        self.say(proc, delay_s, ended, b"\x80", *joined)

    def seed_of(self, text: str) -> int:
        return sum(text.encode())

    def _on_ScoreWanted(self, proc: Proc, m: ms.ScoreWanted, frames: Any) -> None:
        reward = float(self.random.randint(0, 3))
        self.say(proc, self._soon(50), ms.Scored(m.trajectory, m.issue, reward, reward > 0, 0.1))

    def _on_Install(self, proc: Proc, m: ms.Install, frames: Any) -> None:
        life = proc.life

        def install() -> None:
            if proc.life == life and not proc.is_hung:
                proc.installed = m.version
                self.say(proc, 0.0, ms.Installed(m.attempt, m.version, 1, 0.1, 0.1))

        self.after(self.random.uniform(0.01, 0.1), install)

    def _on_Adopt(self, proc: Proc, m: ms.Adopt, frames: Any) -> None:
        self.say(proc, 0.01, ms.Held(m.attempt, m.version, 1, 0.1))

    def _on_TransferOffer(self, proc: Proc, m: ms.TransferOffer, frames: Any) -> None:
        self.say(proc, 0.01, ms.TransferReady(m.epoch, "h", 1, "s"))

    def _on_TransferJoin(self, proc: Proc, m: ms.TransferJoin, frames: Any) -> None:
        if proc.role == "engine":
            self._on_Install(proc, ms.Install(m.attempt, m.version), frames)
        else:
            self.say(proc, self.random.uniform(0.01, 0.1), ms.Held(m.attempt, m.version, 1, 0.1))

    def _on_PublishAgain(self, proc: Proc, m: ms.PublishAgain, frames: Any) -> None:
        self.say(proc, 0.01, ms.Published(m.attempt, m.version, 1, 0.1))

    def _on_Chunk(self, proc: Proc, m: ms.Chunk, frames: list[Frame]) -> None:
        if m.step != self.weights[1] or self.is_training:  # it reads this after the step, and ignores it
            return
        if m.index == 0:
            self.batch = []
        parts = iter([bytes(frame) for frame in frames])
        self.batch += [(item, [next(parts), next(parts), next(parts)]) for item in m.items]
        if not m.last:
            return
        batch, self.batch, life, weights = self.batch, [], proc.life, self.weights
        self.is_training = True
        check_batch(m.step, batch, self.config.flow)

        def commit() -> None:
            if proc.is_up and proc.life == life and self.weights == weights:
                self.is_training = False
                self.weights = (weights[0], weights[1] + 1)
                parent, self.digest = self.digest, f"{self.digest[-20:]}.{weights[0]}.{self.weights[1]}"
                self.trained += [(m.step, item) for item, _ in batch]
                self.say(proc, 0.0, ms.Committed(m.step, self.weights[1], parent, self.digest, {"loss": 1.0}, 0.1, 0.1))
                self.publish(proc)

        self.after(self.random.uniform(0.2, 0.6), commit)

    def fails_to_save(self, rate: float) -> bool:
        if self.random.random() >= rate or self.failed_saves > 2:
            return False
        self.faults["save error"] += 1
        self.failed_saves += 1
        return True

    def _on_Save(self, proc: Proc, m: ms.Save, frames: Any) -> None:
        if m.version != self.weights[1] or self.fails_to_save(self.save_fails):
            self.say(proc, 0.01, ms.Saved(m.version, "no space left on device"))
            return
        self.failed_saves = 0
        part = Path(m.directory) / TRAINER_PART
        part.mkdir()
        (part / "weights").write_text(self.digest)
        self.say(proc, 0.01, ms.Saved(m.version, ""))


def arrays(versions: list[int]) -> list[bytes]:
    """Ids, log-probs and versions of as many tokens."""
    count = len(versions)
    return [np.zeros(count, np.int32).tobytes(), np.zeros(count, np.float32).tobytes(),
            np.array(versions, np.int32).tobytes()]  # fmt: skip


def check_batch(step: int, batch: list[tuple[ms.ChunkItem, list[bytes]]], flow: FlowConfig) -> None:
    """What the trainer gets: whole groups, finite rewards, payloads that fit, no token older or newer than allowed."""
    sizes = Counter(item.group for item, _ in batch)
    assert len(sizes) == flow.groups_per_step and set(sizes.values()) == {flow.group_size}, sizes
    for item, (ids, logprobs, versions) in batch:
        assert np.isfinite(item.reward), f"{item.trajectory} has reward {item.reward}"
        assert len(ids) == len(logprobs) == len(versions) == 4 * sum(item.sample_lengths), item.trajectory
        labels = np.frombuffer(versions, np.int32)
        assert labels.size and step - flow.alpha <= labels.min() and labels.max() <= step, (
            f"step {step} trains tokens of versions {labels.min()} to {labels.max()}"
        )


def make_config(rng: random.Random) -> RunConfig:
    tasks = {"a": TaskConfig(name="a"), "b": TaskConfig(name="b", weight=2.0)}
    config = RunConfig(name="faults", steps=rng.randint(2, 5), tasks=tasks)
    config.flow = FlowConfig(
        alpha=rng.randint(0, 2), groups_per_step=rng.randint(1, 4), group_size=rng.randint(1, 3),
        redundancy=rng.randint(0, 1), quarantine_after=8,
    )  # fmt: skip
    config.env.workers = config.reward.workers = 2
    config.validation, config.checkpoint = ValidationConfig(plays=0), CheckpointConfig(every=rng.randint(1, 2))
    config.timeouts.silence_s = SILENCE_S
    config.weights.transport = rng.choice(["staged", "staged", "direct"])
    return config


def cast_of(rng: random.Random) -> list[Proc]:
    cast = [Proc("supervisor", "supervisor", "cpu", capacity=0), Proc("trainer", "trainer", "compute", capacity=1)]
    cast += [Proc(f"relay-{node}", "relay", node, capacity=0) for node in ("compute", "bandwidth")]
    for pool in ("compute", "bandwidth"):
        cast += [Proc(f"engine-{pool}-{i}", "engine", pool, pool) for i in range(rng.randint(1, 2))]
    cast += [Proc(f"env-{i}", "env", "cpu") for i in range(2)]
    return cast + [Proc(f"reward-{i}", "reward", "cpu", capacity=4) for i in range(2)]
