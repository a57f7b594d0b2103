"""A cluster in virtual time around the real core: every command is answered after the seconds that it would take.

    Play, Deliver   environments: the script of the play            Score          reward workers, one call at a time
    Generate        engines with a token clock (`engine`)           SendChunk      the trainer (`trainer`)
    Adopt, JoinTransfer, Install   weights: bytes over the network, then over the bus of a node

The core decides everything, as in a real run: this module never chooses an engine, a batch or a version. Deadlines of
the core are off, because nothing hangs here; engines may fail.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from rollart_hpc.config.schema import TaskConfig
from rollart_hpc.estimate.roofline import Pace
from rollart_hpc.flow import events as ev
from rollart_hpc.flow.core import Core
from rollart_hpc.flow.rules import FlowRules
from rollart_hpc.simulate.clock import Clock
from rollart_hpc.simulate.engine import Phase, Request, SimEngine, Spent
from rollart_hpc.simulate.trainer import SimTrainer, TrainerPace
from rollart_hpc.simulate.workload import Machines, Script, TaskProfile, draw
from rollart_hpc.types import WeightsId
from rollart_hpc.vocabulary import DropReason, RunState

Observer = Callable[..., None]  # of spans: process, name, start, end, and what else they have
TICK_S = 1.0
NEVER_S = 1e9
_SHM_GB_S = 8.0  # assumed: copying weights within a node
_MOST_SCRIPTS = 100_000


@dataclass(frozen=True)
class EngineSpec:
    name: str
    pool: str
    node: str
    pace: Pace
    kv_tokens: int
    capacity: int  # requests in flight, as a real engine announces it
    max_running: int
    max_prefill: int
    num_gpus: int
    speed: float = 1.0
    reports_kv: bool = True


@dataclass(frozen=True)
class Spec:
    """A run on a cluster, ready to be simulated."""

    rules: FlowRules
    limits: dict[str, TaskConfig]
    profiles: dict[str, TaskProfile]
    machines: Machines
    engines: tuple[EngineSpec, ...]
    trainer: TrainerPace
    trainer_node: str
    envs: tuple[tuple[str, int], ...]  # name and slots
    rewards: tuple[tuple[str, int], ...]
    weight_bytes: float
    kv_token_bytes: float
    keeps_prefix: bool = True
    scripts: dict[tuple[str, int, int, int], Script] = field(default_factory=dict)  # drawn before, by any simulation


def _without_deadlines(rules: FlowRules) -> FlowRules:
    return replace(rules, turn_s=NEVER_S, play_s=NEVER_S, install_s=NEVER_S, stuck_s=NEVER_S, reward_timeout_s=NEVER_S)


@dataclass(slots=True, eq=False)
class Played:
    """A play that an environment has."""

    worker: str
    issue: int
    script: Script
    task: str
    turn: int = 0
    context: int = 0


@dataclass
class Step:
    """A committed step, as the metrics of a real run have it."""

    record: ev.RecordStep
    at_s: float
    tokens: int  # decoded since the step before
    wait_s: float
    train_s: float
    spent_s: dict[str, float]
    kv_used: dict[str, float]


class Cluster:
    def __init__(self, spec: Spec, *, observer: Observer | None = None) -> None:
        self.spec, self.rules = spec, _without_deadlines(spec.rules)
        self.clock = Clock()
        self.core = Core(self.rules, 1)
        self.steps: list[Step] = []
        self.events = 0
        self.ended: RunState | None = None
        self.reason = ""
        self.wasted_tokens = 0
        self.engines: dict[str, SimEngine] = {}
        self.specs = {engine.name: engine for engine in spec.engines}
        self.trainer = SimTrainer(self.clock, spec.trainer, self._committed)
        self._observer = observer
        self._weights = WeightsId(1, 0)
        self._plays: dict[str, Played] = {}
        self._lengths: dict[str, int] = {}  # tokens of trajectories that have ended
        self._requests: dict[int, tuple[Request, str]] = {}
        self._lives: defaultdict[str, int] = defaultdict(int)  # of engines
        self._spent: dict[str, Spent] = {}  # by engines, over all their lives
        self._reward_free_s: dict[str, float] = defaultdict(float)
        self._spent_s: defaultdict[str, float] = defaultdict(float)
        self._chance = Random(spec.rules.seed)
        self._decoded = 0
        self._trained_s = 0.0  # up to the last step
        self._last = 0.0, 0.0  # seconds that the trainer waited for, and worked on, the last step
        self._handlers: dict[type, Callable[[Any], None]] = {
            ev.Play: self._play, ev.AskAgain: self._ask_again, ev.Deliver: self._deliver, ev.Score: self._score,
            ev.Release: self._release, ev.Generate: self._generate, ev.AbortRequest: self._abort,
            ev.Forget: self._forget, ev.SendChunk: self._send_chunk, ev.RecordStep: self._record_step,
            ev.SaveCheckpoint: self._save, ev.Adopt: self._adopt, ev.OfferTransfer: self._offer,
            ev.JoinTransfer: self._join_transfer, ev.Install: self._install, ev.StopRun: self._stop,
        }  # fmt: skip

    def run(self, steps: int, until_s: float = 1e8) -> None:
        """Simulate until so many steps are committed, the run ends, or time `until_s` comes."""
        if not self.events:
            self._begin()
        self.clock.run(until_s, lambda: len(self.steps) >= steps or self.ended)

    @property
    def turns(self) -> int:
        return sum(task.turns for task in self.core.tally.tasks.values())

    def spent(self, pool: str) -> Spent:
        """By all engines of a pool together."""
        total = Spent()
        for name in (each.name for each in self.spec.engines if each.pool == pool):
            for key in Spent.__slots__:
                setattr(total, key, getattr(total, key) + getattr(self._spent[name], key))
        return total

    def _begin(self) -> None:
        spec = self.spec
        nodes = dict.fromkeys([spec.trainer_node, *(engine.node for engine in spec.engines)])
        self.feed(ev.Joined("trainer-0", "trainer", spec.trainer_node, version=0))
        if not self.rules.direct:
            for node in nodes:
                self.feed(ev.Joined(f"relay-{node}", "relay", node))
        for engine in spec.engines:
            self._start_engine(engine.name)
        for name, slots in spec.envs:
            self.feed(ev.Joined(name, "env", capacity=slots))
        for name, slots in spec.rewards:
            self.feed(ev.Joined(name, "reward", capacity=slots))
        self.feed(ev.Published(self._weights))
        self.feed(ev.BatchWanted(0))
        self._tick()

    def _tick(self) -> None:
        self.feed(ev.Tick(self.clock.now))
        self.clock.after(TICK_S, self._tick)

    def feed(self, event: ev.Event) -> None:
        if self.ended:
            return
        self.events += 1
        handlers = self._handlers
        for command in self.core.settle(event):
            handler = handlers.get(type(command))
            if handler is not None:
                handler(command)

    # --- environments and rewards ------------------------------------------------------------

    def _play(self, c: ev.Play) -> None:
        key = c.task, c.seed, c.sample_seed, c.issue
        script = self.spec.scripts.get(key)
        if script is None:
            script = draw(self.spec.profiles[c.task], self.spec.limits[c.task], c.seed, c.sample_seed, c.issue)
            if len(self.spec.scripts) < _MOST_SCRIPTS:
                self.spec.scripts[key] = script
        self._plays[c.trajectory] = Played(c.worker, c.issue, script, c.task)
        self._spent_s["environment"] += script.reset_s
        self._environment_span("environment.reset", self._plays[c.trajectory], c.trajectory, script.reset_s)
        self.clock.after(script.reset_s + self.spec.machines.hop_s, self._ask, c.trajectory, c.issue)

    def _ask(self, trajectory: str, issue: int) -> None:
        """The environment has moved: it wants an answer, or the play has ended."""
        play = self._plays.get(trajectory)
        if play is None or play.issue != issue:
            return
        script, turn = play.script, play.turn
        if script.fails_at == -1:
            self.feed(ev.Ended(trajectory, issue, DropReason.RESET_FAILED))
        elif script.fails_at < turn:
            self.feed(ev.Ended(trajectory, issue, DropReason.ENV_CRASHED, turn))
        elif turn < len(script.prompts):
            most = self.spec.limits[play.task].max_response_tokens
            self.feed(ev.TurnWanted(trajectory, issue, turn, play.context + script.prompts[turn], most))
        else:
            self._lengths[trajectory] = script.tokens
            self.feed(ev.Ended(trajectory, issue, None, turn))

    def _environment_span(self, name: str, play: Played, trajectory: str, seconds: float) -> None:
        if self._observer is not None:
            now = self.clock.now
            self._observer(play.worker, name, now, now + seconds, task=play.task, slot=trajectory)

    def _ask_again(self, c: ev.AskAgain) -> None:
        self.clock.after(self.spec.machines.hop_s, self._ask, c.trajectory, c.issue)

    def _deliver(self, c: ev.Deliver) -> None:
        play = self._plays[c.trajectory]
        script, turn = play.script, play.turn
        play.context += script.prompts[turn] + script.answers[turn]
        play.turn += 1
        seconds = script.steps_s[turn]
        self._spent_s["environment"] += seconds
        self._environment_span("environment.turn", play, c.trajectory, seconds)
        self.clock.after(seconds + self.spec.machines.hop_s, self._ask, c.trajectory, play.issue)

    def _score(self, c: ev.Score) -> None:
        """A worker scores one transcript at a time."""
        script = self._plays[c.trajectory].script
        seconds = script.score_s
        start_s = max(self.clock.now, self._reward_free_s[c.worker])
        self._reward_free_s[c.worker] = start_s + seconds
        self._spent_s["reward"] += seconds
        if self._observer is not None:
            self._observer(c.worker, "reward", start_s, start_s + seconds, task=c.task, slot=c.trajectory)
        scored = ev.Scored(c.trajectory, c.issue, float(script.success), script.success)
        self.clock.after(start_s + seconds - self.clock.now, self.feed, scored)

    def _release(self, c: ev.Release) -> None:
        play = self._plays.pop(c.trajectory, None)
        self._lengths.pop(c.trajectory, None)
        if play is not None and play.turn < len(play.script.prompts):
            self.wasted_tokens += play.context

    # --- engines -----------------------------------------------------------------------------

    def _start_engine(self, name: str) -> None:
        spec = self.specs[name]
        self._lives[name] += 1
        self.engines[name] = engine = SimEngine(
            self.clock,
            spec.pace,
            kv_tokens=spec.kv_tokens,
            max_running=spec.max_running,
            max_prefill=spec.max_prefill,
            on_done=self._generated,
            keeps_prefix=self.spec.keeps_prefix,
            on_span=partial(self._engine_span, name) if self._observer else None,
        )
        engine.spent = self._spent.setdefault(name, engine.spent)
        kv_tokens = spec.kv_tokens if spec.reports_kv else 0
        self.feed(ev.Joined(name, "engine", spec.node, spec.pool, spec.capacity, kv_tokens=kv_tokens, speed=spec.speed))
        if self.spec.machines.engine_mtbf_h:
            lasts_s = self._chance.expovariate(1 / (3600 * self.spec.machines.engine_mtbf_h))
            self.clock.after(lasts_s, self._lose_engine, name)

    def _engine_span(self, name: str, what: str, start_s: float, end_s: float, steps: float, tokens: float) -> None:
        assert self._observer is not None
        self._observer(name, what, start_s, end_s, tokens=round(tokens), steps=round(steps, 3))

    def _lose_engine(self, name: str) -> None:
        self.engines[name].die()
        self._lives[name] += 1
        self._requests = {key: found for key, found in self._requests.items() if found[1] != name}
        self.feed(ev.Lost(name, "failed"))
        self.clock.after(self.spec.machines.engine_back_s, self._start_engine, name)

    def _generate(self, c: ev.Generate) -> None:
        play = self._plays[c.trajectory]
        script, turn = play.script, play.turn
        prompt = play.context + script.prompts[turn]
        reuse = 1.0 if c.kv else self.spec.profiles[play.task].reuse
        request = Request(c.request, c.trajectory, prompt, script.answers[turn], reuse, c.prefill_only)
        self._requests[c.request] = request, c.engine
        if c.kv:
            new = prompt if not turn else script.prompts[turn] + script.answers[turn - 1]
            seconds = new * self.spec.kv_token_bytes / (self.spec.machines.kv_gb_s * 1e9)
            self.clock.after(seconds, self._continue, request, c.engine)
        else:
            self.engines[c.engine].add(request)

    def _continue(self, request: Request, engine: str) -> None:
        """The KV of the other half has arrived."""
        if request.id in self._requests:
            self.engines[engine].take_kv(request.trajectory, request.prompt - 1)
            self.engines[engine].add(request)

    def _generated(self, request: Request) -> None:
        found = self._requests.pop(request.id, None)
        if found is None:
            return
        self._spent_s["generation"] += self.clock.now - request.asked_s
        tokens = int(request.prefilled)
        if request.prefill_only:
            self.feed(ev.Prefilled(request.id, "kv", tokens))
            return
        self._decoded += request.answer
        last = self.engines[found[1]].version
        self.feed(ev.Generated(request.id, request.first_version, last, tokens, request.answer))

    def _abort(self, c: ev.AbortRequest) -> None:
        found = self._requests.pop(c.request, None)
        if found is not None and found[0].phase is not Phase.AWAY:
            self.wasted_tokens += int(found[0].made)
            self.engines[c.engine].abort(found[0])

    def _forget(self, c: ev.Forget) -> None:
        if c.engine in self.engines:
            self.engines[c.engine].forget(c.trajectory)

    # --- the trainer -------------------------------------------------------------------------

    def _send_chunk(self, c: ev.SendChunk) -> None:
        groups = [[self._lengths[member.id] for member in group.members] for group in c.groups]
        self.trainer.take(groups, last=c.last)

    def _committed(self) -> None:
        trained_s = self.trainer.train_s - self._trained_s
        self._trained_s = self.trainer.train_s
        ended_s = self.steps[-1].at_s if self.steps else 0.0
        self._last = max(0.0, self.clock.now - ended_s - trained_s), trained_s
        if self._observer:
            began_s, end_s, _ = self.trainer.steps[-1]
            self._observer("trainer-0", "train", began_s, end_s)
        self._weights = WeightsId(1, self._weights.version + 1)
        self.feed(ev.Committed(self._weights.version, *self._last))
        self.feed(ev.Published(self._weights))
        self.feed(ev.BatchWanted(self._weights.version))

    def _record_step(self, c: ev.RecordStep) -> None:
        kv_used = self._kv_used()
        self.steps.append(Step(c, self.clock.now, self._decoded, *self._last, dict(self._spent_s), kv_used))
        self._decoded = 0
        self._spent_s.clear()

    def _kv_used(self) -> dict[str, float]:
        """Share of each pool."""
        used: defaultdict[str, float] = defaultdict(float)
        has: defaultdict[str, int] = defaultdict(int)
        for name, engine in self.engines.items():
            used[self.specs[name].pool] += engine.kv_used
            has[self.specs[name].pool] += self.specs[name].kv_tokens
        return {pool: used[pool] / max(1, tokens) for pool, tokens in has.items()}

    def _save(self, c: ev.SaveCheckpoint) -> None:
        self.clock.after(self.spec.machines.hop_s, self.feed, ev.Saved(c.version))

    # --- weights -----------------------------------------------------------------------------

    def _adopt(self, c: ev.Adopt) -> None:
        self._held_after(self.spec.weight_bytes / (_SHM_GB_S * 1e9), c.relay, c.weights)

    def _held_after(self, seconds: float, relay: str, weights: WeightsId) -> None:
        self.clock.after(seconds if weights.version else 0.0, self.feed, ev.Held(relay, weights))

    def _offer(self, c: ev.OfferTransfer) -> None:
        self.clock.after(self.spec.machines.hop_s, self.feed, ev.TransferReady(c.epoch))

    def _join_transfer(self, c: ev.JoinTransfer) -> None:
        machines = self.spec.machines
        seconds = machines.push_s or self.spec.weight_bytes / (machines.push_gb_s * 1e9)
        if c.target in self.engines:
            self._begin_install(c.target, c.weights, seconds)
        else:
            self._held_after(seconds, c.target, c.weights)

    def _install(self, c: ev.Install) -> None:
        machines = self.spec.machines
        gpus = max(1, self.specs[c.engine].num_gpus)
        seconds = machines.install_s or self.spec.weight_bytes / (machines.install_gb_s * 1e9 * gpus)
        self._begin_install(c.engine, c.weights, seconds)

    def _begin_install(self, name: str, weights: WeightsId, seconds: float) -> None:
        seconds = seconds if weights.version else 0.0  # the first weights are loaded before the run begins
        self.engines[name].suspend()
        self.clock.after(seconds, self._installed, name, self._lives[name], weights, seconds)

    def _installed(self, name: str, life: int, weights: WeightsId, seconds: float) -> None:
        if self._lives[name] != life:
            return
        engine = self.engines[name]
        engine.resume(weights.version)
        engine.spent.install_s += seconds
        self._spent_s["weights"] += seconds
        if self._observer and seconds:
            self._observer(name, "weights", self.clock.now - seconds, self.clock.now)
        self.feed(ev.Installed(name, weights, int(self.spec.weight_bytes), seconds, seconds))

    def _stop(self, c: ev.StopRun) -> None:
        self.ended, self.reason = c.state, c.reason
