"""Simulates a cluster in virtual time around the real core. Owns the simulated workers and the event queue.

Every command of the core is answered by events after a simulated duration. Workers can die, come back and answer too
late. A real run uses the same core.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.core import Core
from rollart_hpc.flow.rules import FlowRules
from rollart_hpc.types import Role, WeightsId
from rollart_hpc.vocabulary import DropReason

TICK_S = 0.2
PROMPT_TOKENS, ANSWER_TOKENS = 10, 5


@dataclass
class Durations:
    """Seconds of each piece of work, drawn from the world's random numbers."""

    reset: Callable[[random.Random], float] = lambda r: r.expovariate(20)
    turn: Callable[[random.Random], float] = lambda r: r.expovariate(20)
    generate: Callable[[random.Random], float] = lambda r: r.expovariate(10)
    score: Callable[[random.Random], float] = lambda r: r.expovariate(50)
    train: Callable[[random.Random], float] = lambda r: r.uniform(0.2, 0.6)
    transfer: Callable[[random.Random], float] = lambda r: r.uniform(0.01, 0.1)
    turns: Callable[[random.Random], int] = lambda r: r.randint(1, 6)
    failure_rate: float = 0.0


@dataclass
class Member:
    """A simulated process. `life` numbers its incarnations: an answer of an earlier one comes from a dead process."""

    name: str
    role: Role
    node: str = "n0"
    pool: str = ""
    capacity: int = 8
    kv_tokens: int = 0
    speed: float = 1.0
    is_alive: bool = False
    life: int = 0
    is_hung: bool = False  # takes everything, answers nothing
    installed: WeightsId | None = None


@dataclass
class LedgerLine:
    attempt: int
    version: int
    parent: WeightsId
    trajectories: list[str]
    start_versions: list[int]
    sizes: list[int]


@dataclass
class World:
    rules: FlowRules
    members: list[Member]
    seed: int = 0
    durations: Durations = field(default_factory=Durations)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now = 0.0
        self.attempt = 1
        self.core = Core(self.rules, self.attempt)
        self.by_name = {m.name: m for m in self.members}
        self.checkpoint: dict[str, Any] | None = None
        self.snapshots: dict[int, dict[str, Any]] = {}
        self.ledger: list[LedgerLine] = []
        self.weights = WeightsId(1, 0)  # the trainer's
        self.ended = ""
        self.events = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = 0
        self._turns_left: dict[tuple[str, int], int] = {}
        self._first_turn: dict[tuple[str, int], int] = {}
        self.checks: list[Callable[[World, ev.Event], None]] = []

    # --- time --------------------------------------------------------------------------------

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._queue, (self.now + delay_s, self._serial, action))

    def run(self, until_s: float) -> str:
        """Simulate until the run ends, or until `until_s`. Returns how it ended ("" = not yet)."""
        self.after(0.0, self._tick)
        while self._queue and not self.ended:
            when, _, action = heapq.heappop(self._queue)
            if when > until_s:
                break
            self.now = when
            action()
        return self.ended

    def _tick(self) -> None:
        self.feed(ev.Tick(self.now))
        self.after(TICK_S, self._tick)

    # --- membership --------------------------------------------------------------------------

    def start(self, name: str) -> None:
        member = self.by_name[name]
        if member.is_alive:
            return
        member.is_alive, member.life, member.installed, member.is_hung = True, member.life + 1, None, False
        attempt, version = self.attempt, -1
        if member.role == "trainer":
            version = self.weights.version
        place = member.node, member.pool, member.capacity
        self.feed(ev.Joined(name, member.role, *place, attempt, version, 1, member.kv_tokens, member.speed))
        if member.role == "trainer":
            self._answer(member, 0.05, ev.Published(self.weights))
            self._answer(member, 0.06, ev.BatchWanted(self.weights.version))

    def kill(self, name: str, back_after_s: float) -> None:
        """SIGKILL. A dead trainer comes back as a new attempt, restored from the newest checkpoint."""
        member = self.by_name[name]
        if not member.is_alive or self.ended:
            return
        member.is_alive = False
        self.feed(ev.Lost(name, "killed"))
        if member.role == "trainer":
            self.attempt += 1
            version = self.checkpoint["version"] if self.checkpoint else 0
            self.weights = WeightsId(self.attempt, version)
        self.after(back_after_s, lambda: self.start(name))

    def reconnect(self, name: str) -> None:
        """Its connection broke: it is lost, dropped all its work, and joins again at once as a new life."""
        member = self.by_name[name]
        if member.is_alive and member.role != "trainer" and not self.ended:
            member.is_alive = False
            self.start(name)

    def hang(self, name: str) -> None:
        """From now on it takes everything and answers nothing, and its heartbeats go on. Only a restart helps."""
        self.by_name[name].is_hung = True

    def _do_Replace(self, c: ev.Replace) -> None:
        self.kill(c.worker, self.random.uniform(0.1, 3.0))

    def kill_controller(self) -> None:
        """Everything restarts as a new attempt from the last committed checkpoint."""
        self.attempt += 1
        version = self.checkpoint["version"] if self.checkpoint else 0
        self.weights = WeightsId(self.attempt, version)
        self.core = Core(self.rules, self.attempt, self.checkpoint)
        for member in self.members:
            member.is_alive = False
            self.after(self.random.uniform(0.01, 0.5), partial(self.start, member.name))

    # --- the core ----------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> None:
        if self.ended:
            return
        self.events += 1
        for command in self.core.settle(event):
            self._carry_out(command)
        for check in self.checks:
            check(self, event)

    def _answer(self, member: Member, delay_s: float, event: ev.Event) -> None:
        """Answer from the current life of the member. After its death some answers still arrive, late."""
        life, attempt = member.life, self.attempt
        is_zombie_heard = self.random.random() < 0.3

        def arrive() -> None:
            same = member.life == life and member.is_alive
            if member.is_hung:
                return
            if same or (is_zombie_heard and attempt == self.attempt and member.role != "trainer"):
                self.feed(event)

        self.after(delay_s, arrive)

    def _carry_out(self, command: ev.Command) -> None:
        handler = getattr(self, f"_do_{type(command).__name__}", None)
        if handler is not None:
            handler(command)

    # --- what workers do ---------------------------------------------------------------------

    def _do_Play(self, c: ev.Play) -> None:
        member, play = self.by_name[c.worker], (c.trajectory, c.issue)
        self._turns_left[play] = self.durations.turns(self.random)
        delay_s = self.durations.reset(self.random)
        if self.random.random() < self.durations.failure_rate:
            self._answer(member, delay_s, ev.Ended(c.trajectory, c.issue, DropReason.RESET_FAILED))
        else:
            self._answer(member, delay_s, self._wanted(c.trajectory, c.issue, 0))

    def _wanted(self, trajectory: str, issue: int, turn: int) -> ev.TurnWanted:
        """Each turn adds as many tokens as the engine reports for the turn before."""
        return ev.TurnWanted(trajectory, issue, turn, PROMPT_TOKENS * (turn + 1), ANSWER_TOKENS)

    def _do_AskAgain(self, c: ev.AskAgain) -> None:
        if c.worker in self.by_name:
            self._answer(self.by_name[c.worker], 0.001, self._wanted(c.trajectory, c.issue, c.turn))

    def _do_Generate(self, c: ev.Generate) -> None:
        engine = self.by_name[c.engine]
        assert engine.installed is not None, "a request went to an engine without weights"
        first = engine.installed.version
        life = engine.life

        def finish() -> None:
            if engine.life == life and engine.installed is not None and engine.is_alive and not engine.is_hung:
                if self.random.random() < 0.02:
                    self.feed(ev.PrefixMissing(c.request))
                elif c.prefill_only:
                    self.feed(ev.Prefilled(c.request, f"{first}", PROMPT_TOKENS))
                else:
                    newest = max(first, engine.installed.version)
                    self.feed(ev.Generated(c.request, first, newest, PROMPT_TOKENS, ANSWER_TOKENS))

        self.after(self.durations.generate(self.random) / engine.speed, finish)

    def _do_Deliver(self, c: ev.Deliver) -> None:
        trajectory = self.core.trajectories.all[c.trajectory]
        member, play = self.by_name[c.worker], (c.trajectory, trajectory.issue)
        self._turns_left[play] -= 1
        delay_s = self.durations.turn(self.random)
        turn = trajectory.turn + 1
        if self.random.random() < self.durations.failure_rate:
            self._answer(member, delay_s, ev.Ended(c.trajectory, trajectory.issue, DropReason.ENV_CRASHED))
        elif self._turns_left[play] > 0:
            self._answer(member, delay_s, self._wanted(c.trajectory, trajectory.issue, turn))
        else:
            self._answer(member, delay_s, ev.Ended(c.trajectory, trajectory.issue, None, turn))

    def _do_Score(self, c: ev.Score) -> None:
        member, delay_s = self.by_name[c.worker], self.durations.score(self.random)
        if self.random.random() < self.durations.failure_rate:
            self._answer(member, delay_s, ev.ScoreFailed(c.trajectory, c.issue, c.worker))
        else:
            reward = float(self.random.randint(0, 3))
            self._answer(member, delay_s, ev.Scored(c.trajectory, c.issue, reward, reward > 0))

    def _do_SendChunk(self, c: ev.SendChunk) -> None:
        for group in c.groups:
            assert group.complete and len(group.members) == self.rules.group_size, "only whole groups train"
            assert group.version is not None and group.version >= c.step - self.rules.alpha, "too stale to train"
        if not c.last:
            return
        trainer = self.by_name[c.trainer]
        life, parent = trainer.life, self.weights

        def commit() -> None:
            if trainer.life != life or not trainer.is_alive or self.weights != parent:
                return
            self.weights = WeightsId(parent.attempt, parent.version + 1)
            self.feed(ev.Committed(self.weights.version, 0.1, 0.1))
            self._answer(trainer, 0.01, ev.Published(self.weights))
            self._answer(trainer, 0.02, ev.BatchWanted(self.weights.version))

        self.after(self.durations.train(self.random), commit)

    def _do_RecordStep(self, c: ev.RecordStep) -> None:
        members = [m for group in c.groups for m in group.members]
        parent = WeightsId(self.weights.attempt, c.version - 1)
        sizes = [len(group.members) for group in c.groups]
        ids, starts = [m.id for m in members], [m.first_version for m in members]
        self.ledger.append(LedgerLine(c.attempt, c.version, parent, ids, starts, sizes))

    def _do_SaveCheckpoint(self, c: ev.SaveCheckpoint) -> None:
        self.snapshots[c.version] = self.core.snapshot()
        trainer = self.by_name[c.trainer]
        life = trainer.life

        def saved() -> None:
            if trainer.life == life and trainer.is_alive:
                good = self.weights.version == c.version
                if good and self.core.saving == c.version:
                    self.checkpoint = self.snapshots[c.version]
                self.feed(ev.Saved(c.version, "" if good else "at another version"))

        self.after(0.01, saved)

    # --- weights -----------------------------------------------------------------------------

    def _do_Adopt(self, c: ev.Adopt) -> None:
        is_bad = self.random.random() < self.durations.failure_rate
        answer = ev.TransferFailed(0, c.relay) if is_bad else ev.Held(c.relay, c.weights)
        self._answer(self.by_name[c.relay], 0.001, answer)

    def _do_PublishAgain(self, c: ev.PublishAgain) -> None:
        self._answer(self.by_name[c.trainer], 0.001, ev.Published(c.weights))

    def _do_OfferTransfer(self, c: ev.OfferTransfer) -> None:
        self._answer(self.by_name[c.source], 0.001, ev.TransferReady(c.epoch))

    def _do_JoinTransfer(self, c: ev.JoinTransfer) -> None:
        target = self.by_name[c.target]
        delay_s = self.durations.transfer(self.random)
        if self.random.random() < self.durations.failure_rate:
            self._answer(target, delay_s, ev.TransferFailed(c.epoch, c.target))
        elif target.role == "engine":
            self._install(target, c.weights, delay_s)
        else:
            self._answer(target, delay_s, ev.Held(c.target, c.weights))

    def _do_Install(self, c: ev.Install) -> None:
        engine, delay_s = self.by_name[c.engine], self.durations.transfer(self.random)
        if self.random.random() < self.durations.failure_rate:
            self._answer(engine, delay_s, ev.InstallFailed(c.engine, c.weights))
        else:
            self._install(engine, c.weights, delay_s)

    def _install(self, engine: Member, weights: WeightsId, delay_s: float) -> None:
        life = engine.life

        def install() -> None:
            if engine.life == life and engine.is_alive and not engine.is_hung:
                engine.installed = weights
                self.feed(ev.Installed(engine.name, weights, 1, delay_s, delay_s))

        self.after(delay_s, install)

    def _do_StopRun(self, c: ev.StopRun) -> None:
        self.ended = c.state
