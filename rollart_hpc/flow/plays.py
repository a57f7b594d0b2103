"""The life of a trajectory: queued -> environment <-> engine -> reward -> scored. Owns all of them.

Any step may be undone by a lost worker, and any may come too late: an answer for an older issue or
an unknown request changes nothing and is counted as superseded. What becomes of a scored or failed
trajectory is decided by the core (`on_scored`, `on_failed`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.policy import Policy
from rollart_hpc.flow.routing import Router, Stage
from rollart_hpc.flow.state import PLAYING, Failure, State, Tally, Trajectory, Worker

FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.1, 10.0


@dataclass
class Hooks:
    """What the core does when a trajectory gets somewhere."""

    on_reset: Callable[[Trajectory], None]
    on_turn: Callable[[Trajectory], bool]  # False: it is gone (stale)
    on_scored: Callable[[Trajectory], None]
    on_failed: Callable[[Trajectory, Failure], None]


@dataclass
class Plays:
    policy: Policy
    tally: Tally
    workers: dict[str, Worker]
    router: Router
    emit: Callable[[ev.Command], None]
    hooks: Hooks
    now: float = 0.0
    all: dict[str, Trajectory] = field(default_factory=dict)
    requests: dict[int, Trajectory] = field(default_factory=dict)
    queue: deque[Trajectory] = field(default_factory=deque)
    to_score: deque[Trajectory] = field(default_factory=deque)
    _next_request: int = 0

    # --- entering and leaving ----------------------------------------------------------------

    def enter(self, trajectory: Trajectory) -> None:
        self.all[trajectory.id] = trajectory
        self.queue.append(trajectory)

    def leave(self, trajectory: Trajectory, reason: str) -> None:
        """Cancel at once: environment closed, engine slot freed, payload released."""
        if trajectory.state is State.GONE:
            return
        self._leave_engine(trajectory)
        self._leave_env(trajectory, reason)
        self._leave_reward(trajectory)
        trajectory.state = State.GONE
        self.forget(trajectory)

    def forget(self, trajectory: Trajectory) -> None:
        """Nothing more will come of it."""
        if self.all.pop(trajectory.id, None) is not None:
            self.emit(ev.Release(trajectory.id))

    def again(self, trajectory: Trajectory, delay_s: float = 0.0) -> None:
        """From the start, under a new issue."""
        self._leave_engine(trajectory)
        self._leave_env(trajectory, "issued again")
        trajectory.issue += 1
        trajectory.turn = 0
        trajectory.first_version = trajectory.last_version = -1
        trajectory.score_failures = 0
        trajectory.not_before = self.now + delay_s
        trajectory.state = State.QUEUED
        self.queue.append(trajectory)

    def backoff_s(self, failures: int) -> float:
        return float(min(FIRST_BACKOFF_S * 2**failures, LAST_BACKOFF_S))

    # --- events ------------------------------------------------------------------------------

    def turn_wanted(self, event: ev.TurnWanted) -> None:
        trajectory = self._current(event.trajectory, event.issue)
        if trajectory is None or trajectory.state is not State.STEPPING:
            self._superseded()
            return
        if event.turn == 0:
            self.hooks.on_reset(trajectory)
        trajectory.turn = event.turn
        trajectory.kv = ""
        trajectory.state = State.WAITING
        if self.hooks.on_turn(trajectory) and not self.policy_holds(trajectory):
            self.router.enqueue(trajectory)

    def generated(self, event: ev.Generated) -> None:
        trajectory = self._take_request(event.request)
        if trajectory is None:
            return
        if event.first_version < 0:
            failure = Failure("no_room", worker=trajectory.engine)
            self._leave_engine(trajectory)
            self._leave_env(trajectory, "no_room")
            self.hooks.on_failed(trajectory, failure)
            return
        if trajectory.first_version < 0:
            trajectory.first_version = event.first_version
        trajectory.last_version = max(trajectory.last_version, event.last_version)
        task = self.tally.tasks[trajectory.task]
        task.turns += 1
        task.prefill_tokens += event.num_prefill_tokens
        task.decode_tokens += event.num_decode_tokens
        trajectory.state = State.ANSWERED
        if not self.policy_holds(trajectory):
            self._deliver(trajectory, event.request)
        else:
            trajectory.request = event.request

    def prefilled(self, event: ev.Prefilled) -> None:
        """Half of a split turn: it waits again, now for an engine that decodes."""
        trajectory = self._take_request(event.request)
        if trajectory is None:
            return
        self.tally.tasks[trajectory.task].prefill_tokens += event.num_prefill_tokens
        trajectory.kv, trajectory.state = event.kv, State.WAITING
        self.router.enqueue(trajectory)

    def prefix_missing(self, event: ev.PrefixMissing) -> None:
        trajectory = self._take_request(event.request)
        if trajectory is not None:
            self._ask_again(trajectory)

    def ended(self, event: ev.Ended) -> None:
        trajectory = self._current(event.trajectory, event.issue)
        if trajectory is None or trajectory.state is not State.STEPPING:
            self._superseded()
            return
        trajectory.turn = event.num_turns
        failure = Failure(event.status, event.detail, trajectory.env)
        self._leave_engine(trajectory)
        self._free_env(trajectory)
        if event.status != "done":
            self.hooks.on_failed(trajectory, failure)
            return
        trajectory.state = State.ENDED
        self.to_score.append(trajectory)

    def scored(self, event: ev.Scored) -> None:
        trajectory = self._current(event.trajectory, event.issue)
        if trajectory is None or trajectory.state not in (State.SCORING, State.ENDED):
            self._superseded()
            return
        self._leave_reward(trajectory)
        trajectory.state = State.SCORED
        trajectory.reward, trajectory.success = event.reward, event.success
        self.hooks.on_scored(trajectory)

    def score_failed(self, event: ev.ScoreFailed) -> None:
        trajectory = self._current(event.trajectory, event.issue)
        if trajectory is None or trajectory.state is not State.SCORING:
            self._superseded()
            return
        self._score_again(trajectory, event.detail)

    def lost(self, worker: Worker) -> None:
        """Issue again what it was playing, ask again for what it was generating, score again what it was scoring."""
        mine = [t for t in self.all.values() if worker.name in (t.env, t.engine, t.reward_worker)]
        for trajectory in mine:
            if worker.role == "env" and trajectory.env == worker.name and trajectory.state in PLAYING:
                trajectory.env = ""
                self.tally.dropped["env_worker_lost"] += 1
                self.again(trajectory)
            elif worker.role == "engine" and trajectory.engine == worker.name:
                self._lost_engine(trajectory)
            elif worker.role == "reward" and trajectory.state is State.SCORING:
                trajectory.reward_worker = ""
                trajectory.state = State.ENDED
                self.to_score.appendleft(trajectory)

    def recall_requests(self) -> None:
        """The trainer fell back: what engines are generating now belongs to a version that is gone."""
        for request, trajectory in list(self.requests.items()):
            self.emit(ev.AbortRequest(trajectory.engine, request))
            self._take_request(request)
            self._ask_again(trajectory)

    # --- moving on ---------------------------------------------------------------------------

    def pump(self) -> None:
        """Spend every credit there is: environments, engines, rewards."""
        if self.policy.lockstep:
            self._release_lockstep()
        self._pump_envs()
        for trajectory, engine in self.router.assign():
            self._generate(trajectory, engine)
        self._pump_rewards()

    @property
    def num_to_score(self) -> int:
        """Transcripts that a reward worker could take now or has; those held back until all have ended don't count."""
        scoring = sum(t.state is State.SCORING for t in self.all.values())
        return scoring if self._rewards_wait() else scoring + sum(t.state is State.ENDED for t in self.to_score)

    def expire_scores(self) -> None:
        for trajectory in [t for t in self.all.values() if t.state is State.SCORING]:
            if self.now > trajectory.reward_deadline:
                self.tally.dropped["score_timeout"] += 1
                trajectory.issue += 1  # a late answer is superseded
                self._score_again(trajectory, f"no answer in {self.policy.reward_timeout_s:g} s")

    def policy_holds(self, trajectory: Trajectory) -> bool:
        return self.policy.lockstep and trajectory.is_training

    def _release_lockstep(self) -> None:
        """No environment is busy: generate. All have their answer: let the environments go on."""
        playing = [t for t in self.all.values() if t.is_training and t.state in PLAYING]
        states = {t.state for t in playing}
        if states == {State.ANSWERED}:
            for trajectory in playing:
                self._deliver(trajectory, trajectory.request)
        elif State.STEPPING not in states:
            for trajectory in playing:
                if trajectory.state is State.WAITING and trajectory.request < 0:
                    self.router.enqueue(trajectory)
                    trajectory.request = 0  # marks it as handed to the router

    def _pump_envs(self) -> None:
        if not self.queue:
            return
        envs = [w for w in self.workers.values() if w.role == "env" and w.room > 0]
        later: list[Trajectory] = []
        while envs and self.queue:
            trajectory = self.queue.popleft()
            if trajectory.state is not State.QUEUED:
                continue
            if trajectory.not_before > self.now:
                later.append(trajectory)
                continue
            worker = min(envs, key=lambda w: (w.load / w.capacity, w.name))
            self._play(trajectory, worker)
            if worker.room <= 0:
                envs.remove(worker)
        self.queue.extendleft(reversed(later))

    def _play(self, trajectory: Trajectory, worker: Worker) -> None:
        worker.load += 1
        trajectory.env, trajectory.state = worker.name, State.STEPPING
        heat = self.policy.temperature if trajectory.is_training else self.policy.validation_temperature
        t = trajectory
        self.emit(ev.Play(worker.name, t.id, t.issue, t.task, t.seed, t.sample_seed, heat, t.purpose))

    def _generate(self, trajectory: Trajectory, engine: Worker) -> None:
        stage = self.router.stage(trajectory)
        if trajectory.engine != engine.name:
            self._leave_engine(trajectory)
            trajectory.engine = engine.name
            engine.active += 1
        engine.load += 1
        self._next_request += 1
        trajectory.request, trajectory.state = self._next_request, State.GENERATING
        self.requests[trajectory.request] = trajectory
        heat = self.policy.temperature if trajectory.is_training else self.policy.validation_temperature
        seed = (trajectory.sample_seed * 1_000_003 + trajectory.turn) % (1 << 62)
        prefill_only, kv = stage is Stage.PREFILL, trajectory.kv if stage is Stage.DECODE else ""
        t = trajectory
        self.emit(ev.Generate(engine.name, t.request, t.id, t.turn, heat, seed, prefill_only, kv))

    def _deliver(self, trajectory: Trajectory, request: int) -> None:
        trajectory.request, trajectory.state = -1, State.STEPPING
        self.emit(ev.Deliver(trajectory.env, request, trajectory.id))

    def _ask_again(self, trajectory: Trajectory) -> None:
        trajectory.state = State.STEPPING
        self.emit(ev.AskAgain(trajectory.env, trajectory.id, trajectory.issue, trajectory.turn))

    def _rewards_wait(self) -> bool:
        return self.policy.rewards_last and any(t.is_training and t.state in PLAYING for t in self.all.values())

    def _pump_rewards(self) -> None:
        if not self.to_score or self._rewards_wait():
            return
        workers = [w for w in self.workers.values() if w.role == "reward" and w.room > 0]
        while workers and self.to_score:
            trajectory = self.to_score.popleft()
            if trajectory.state is not State.ENDED:
                continue
            worker = min(workers, key=lambda w: (w.load, w.name))
            worker.load += 1
            trajectory.reward_worker = worker.name
            # A worker scores one after the other, and ends a call at its own deadline: this is the second line.
            trajectory.reward_deadline = self.now + self.policy.reward_timeout_s * (worker.load + 1)
            trajectory.state = State.SCORING
            self.emit(ev.Score(worker.name, trajectory.id, trajectory.issue, trajectory.task))
            if worker.room <= 0:
                workers.remove(worker)

    # --- undoing -----------------------------------------------------------------------------

    def _score_again(self, trajectory: Trajectory, detail: str) -> None:
        failure = Failure("reward_failed", detail, trajectory.reward_worker)
        self._leave_reward(trajectory)
        trajectory.score_failures += 1
        if trajectory.score_failures > self.policy.reward_retries:
            self.hooks.on_failed(trajectory, failure)
            return
        trajectory.state = State.ENDED
        self.to_score.append(trajectory)

    def _lost_engine(self, trajectory: Trajectory) -> None:
        trajectory.engine = ""
        if trajectory.state is State.GENERATING:
            self.requests.pop(trajectory.request, None)
            trajectory.request = -1
            self.tally.dropped["engine_lost"] += 1
            self._ask_again(trajectory)

    def _take_request(self, request: int) -> Trajectory | None:
        trajectory = self.requests.pop(request, None)
        if trajectory is None:
            self._superseded()
            return None
        self._spend_back(trajectory.engine)
        trajectory.request = -1
        return trajectory

    def _leave_engine(self, trajectory: Trajectory) -> None:
        if trajectory.state is State.GENERATING and trajectory.request in self.requests:
            del self.requests[trajectory.request]
            self.emit(ev.AbortRequest(trajectory.engine, trajectory.request))
            self._spend_back(trajectory.engine)
        trajectory.request = -1
        if trajectory.engine in self.workers:
            self.workers[trajectory.engine].active -= 1
            self.emit(ev.Forget(trajectory.engine, trajectory.id))
        trajectory.engine = ""

    def _leave_env(self, trajectory: Trajectory, reason: str) -> None:
        if trajectory.env and trajectory.state in PLAYING:
            self.emit(ev.CancelPlay(trajectory.env, trajectory.id, trajectory.issue, reason))
        self._free_env(trajectory)

    def _free_env(self, trajectory: Trajectory) -> None:
        if trajectory.env:
            self._spend_back(trajectory.env)
        trajectory.env = ""

    def _leave_reward(self, trajectory: Trajectory) -> None:
        if trajectory.reward_worker:
            self._spend_back(trajectory.reward_worker)
        trajectory.reward_worker = ""

    def _spend_back(self, name: str) -> None:
        if name in self.workers:
            self.workers[name].load -= 1

    def _current(self, name: str, issue: int) -> Trajectory | None:
        trajectory = self.all.get(name)
        return trajectory if trajectory is not None and trajectory.issue == issue else None

    def _superseded(self) -> None:
        self.tally.dropped["superseded"] += 1
