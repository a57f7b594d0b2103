"""The life of a trajectory: queued -> environment <-> engine -> reward -> scored. Owns all of them.

Any step may be undone by a lost worker, and any may come too late: an answer for an older issue or an unknown request
changes nothing and is counted as superseded. What becomes of a scored or failed trajectory is decided by the core
(`on_scored`, `on_failed`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.pace import Pace
from rollart_hpc.flow.ranking import Ranking
from rollart_hpc.flow.routing import Router, Stage
from rollart_hpc.flow.rules import FlowRules
from rollart_hpc.flow.state import PLAYING, Failure, State, Tally, Trajectory, Worker
from rollart_hpc.flow.streaks import Kind, Streaks
from rollart_hpc.vocabulary import DropReason

FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.1, 10.0
BURST = 64  # maximum trajectories handed out per event, so that a large batch does not delay turns


@dataclass
class Hooks:
    """Callbacks of the core."""

    on_turn: Callable[[Trajectory], bool]  # False: it is gone (stale)
    on_begun: Callable[[Trajectory], None]  # its first tokens were requested or sampled
    on_scored: Callable[[Trajectory], None]
    on_failed: Callable[[Trajectory, Failure], None]
    on_score_failed: Callable[[Trajectory, Failure], None]  # it may be scored again
    on_proved: Callable[[Worker], None]  # its first answer since it joined
    on_overdue: Callable[[Worker, str], None]  # it missed a deadline


class Trajectories:
    def __init__(
        self,
        rules: FlowRules,
        tally: Tally,
        workers: dict[str, Worker],
        router: Router,
        emit: Callable[[ev.Command], None],
        hooks: Hooks,
        streaks: Streaks,
        turns: Pace,
    ) -> None:
        self.rules, self.tally, self.workers, self.router = rules, tally, workers, router
        self._streaks, self._turns = streaks, turns
        self.emit, self.hooks = emit, hooks
        self.now = 0.0
        self.all: dict[str, Trajectory] = {}
        self.requests: dict[int, Trajectory] = {}
        self.has_backlog = False  # more trajectories could be handed out now
        self._queue: deque[Trajectory] = deque()  # for environments
        self._delayed: list[tuple[float, int, Trajectory]] = []  # until when
        self._to_score: deque[Trajectory] = deque()
        self._deadlines: list[tuple[float, int, Trajectory, int]] = []  # of scores, with the issue
        self._envs, self._rewards = Ranking(), Ranking()  # workers with a free credit, the least busy first
        self._counts = {is_training: [0] * (len(State) + 1) for is_training in (True, False)}  # by state
        self._held_turns: list[Trajectory] = []  # lockstep: until no environment is busy
        self._held_answers: list[Trajectory] = []  # lockstep: until all have their answer
        self._next_request = 0
        self._serial = 0

    # --- entering and leaving ----------------------------------------------------------------

    def enter(self, trajectory: Trajectory) -> None:
        self.take_back(trajectory)
        self._queue.append(trajectory)

    def take_back(self, trajectory: Trajectory) -> None:
        """Track the trajectory in its current state."""
        self.all[trajectory.id] = trajectory
        self._counts[trajectory.is_training][trajectory.state] += 1

    def leave(self, trajectory: Trajectory, reason: DropReason) -> None:
        """Cancel at once: environment closed, engine slot freed, payload released."""
        if trajectory.state is State.GONE:
            return
        self._leave_engine(trajectory)
        self._leave_env(trajectory, reason)
        self._leave_reward(trajectory)
        self._set(trajectory, State.GONE)
        self.forget(trajectory)

    def forget(self, trajectory: Trajectory) -> None:
        """Stop tracking it and free its payloads."""
        if self.all.pop(trajectory.id, None) is not None:
            self._counts[trajectory.is_training][trajectory.state] -= 1
            trajectory.group = None  # breaks the reference cycle, so no garbage collection is needed
            self.emit(ev.Release(trajectory.id))

    def again(self, trajectory: Trajectory, delay_s: float = 0.0) -> None:
        """Play it again from the start, under a new issue."""
        self._leave_engine(trajectory)
        self._leave_env(trajectory, "issued again")
        trajectory.issue += 1
        trajectory.turn = 0
        trajectory.first_version = trajectory.last_version = -1
        trajectory.turn_tokens = trajectory.footprint = 0
        trajectory.pools = None
        trajectory.score_failures = trajectory.overdue = 0
        self._set(trajectory, State.QUEUED)
        self._has_yet_to_begin(trajectory)
        if delay_s > 0:
            self._serial += 1
            heapq.heappush(self._delayed, (self.now + delay_s, self._serial, trajectory))
        else:
            self._queue.append(trajectory)

    def _has_yet_to_begin(self, trajectory: Trajectory) -> None:
        """Its first tokens will not be sampled as planned."""
        trajectory.planned_version = -1
        self.hooks.on_begun(trajectory)

    def backoff_s(self, failures: int) -> float:
        return float(min(FIRST_BACKOFF_S * 2**failures, LAST_BACKOFF_S))

    def _set(self, trajectory: Trajectory, state: State) -> None:
        counts = self._counts[trajectory.is_training]
        counts[trajectory.state] -= 1
        counts[state] += 1
        trajectory.state = state
        trajectory.since_s = self.now

    # --- what there is -----------------------------------------------------------------------

    @property
    def num_playing(self) -> int:
        return self._num_playing(True) + self._num_playing(False)

    def _num_playing(self, is_training: bool) -> int:
        counts = self._counts[is_training]
        return sum(counts[state] for state in PLAYING)

    def _num(self, state: State) -> int:
        return self._counts[True][state] + self._counts[False][state]

    @property
    def num_to_score(self) -> int:
        """Transcripts that a reward worker could take now or has; those held back until all have ended don't count."""
        scoring = self._num(State.SCORING)
        return scoring if self._rewards_wait() else scoring + self._num(State.ENDED)

    def is_stepping(self, trajectory: str, issue: int) -> bool:
        """True if this issue is with its environment."""
        found = self._current(trajectory, issue)
        return found is not None and found.state is State.STEPPING

    # --- events ------------------------------------------------------------------------------

    def joined(self, worker: Worker) -> None:
        self._rank(worker)

    def turn_wanted(self, event: ev.TurnWanted) -> None:
        trajectory = self._current(event.trajectory, event.issue)
        if trajectory is None or trajectory.state is not State.STEPPING:
            self._superseded()
            return
        self._moved(self.workers.get(trajectory.env), trajectory)
        if self._streaks.counts:
            self._streaks.worked(trajectory.task, trajectory.env, Kind.STEP if event.turn else Kind.RESET, event.turn)
        trajectory.turn = event.turn
        trajectory.kv = ""
        trajectory.prompt_tokens = event.num_tokens
        trajectory.turn_tokens = event.num_tokens + event.max_new_tokens
        self._set(trajectory, State.WAITING)
        if not self.hooks.on_turn(trajectory):
            return
        if self._is_in_lockstep(trajectory):
            self._held_turns.append(trajectory)
        else:
            self.router.enqueue(trajectory)

    def generated(self, event: ev.Generated) -> None:
        trajectory = self._answered(event.request)
        if trajectory is None:
            return
        if event.first_version < 0:
            failure = Failure(event.failure, event.detail, trajectory.engine or trajectory.prefiller)
            self._leave_engine(trajectory)
            self._leave_env(trajectory, event.failure)
            self.hooks.on_failed(trajectory, failure)
            return
        trajectory.shuns = ""
        if trajectory.first_version < 0 or event.first_version < trajectory.first_version:
            trajectory.first_version = event.first_version  # older if its engine died, and another lags behind
            self.hooks.on_begun(trajectory)
        trajectory.last_version = max(trajectory.last_version, event.last_version)
        task = self.tally.tasks[trajectory.task]
        task.turns += 1
        task.prefill_tokens += event.num_prefill_tokens
        task.decode_tokens += event.num_decode_tokens
        if trajectory.is_training:
            used = event.num_prefill_tokens, event.num_decode_tokens
            self.router.affinity.turn(trajectory.task, trajectory.prompt_tokens, *used)
        self._set(trajectory, State.ANSWERED)
        if self._is_in_lockstep(trajectory):
            trajectory.request = event.request
            self._held_answers.append(trajectory)
        else:
            self._deliver(trajectory, event.request)

    def prefilled(self, event: ev.Prefilled) -> None:
        """The first half of a split turn is done. Wait for an engine that decodes."""
        trajectory = self._answered(event.request)
        if trajectory is None:
            return
        self.tally.tasks[trajectory.task].prefill_tokens += event.num_prefill_tokens
        trajectory.kv = event.kv
        self._set(trajectory, State.WAITING)
        self.router.enqueue(trajectory)

    def prefix_missing(self, event: ev.PrefixMissing) -> None:
        trajectory = self._answered(event.request)
        if trajectory is not None:
            self._ask_again(trajectory)

    def ended(self, event: ev.Ended) -> None:
        trajectory = self._current(event.trajectory, event.issue)
        if trajectory is None or trajectory.state is not State.STEPPING:
            self._superseded()
            return
        trajectory.turn = event.num_turns
        env = trajectory.env
        if event.failure is None:
            self._moved(self.workers.get(env), trajectory)
            if self._streaks.counts:
                self._streaks.ended_well(trajectory.task, env)
        elif (worker := self.workers.get(env)) is not None:
            worker.moved_s = self.now
            worker.failures += 1
        self._leave_engine(trajectory)
        self._free_env(trajectory)
        if event.failure is not None:
            self.hooks.on_failed(trajectory, Failure(event.failure, event.detail, env))
            return
        self.router.ended(trajectory)
        self._set(trajectory, State.ENDED)
        self._to_score.append(trajectory)

    def scored(self, event: ev.Scored) -> None:
        trajectory = self._current(event.trajectory, event.issue)
        if trajectory is None or trajectory.state not in (State.SCORING, State.ENDED):
            self._superseded()
            return
        self._moved(self.workers.get(trajectory.reward_worker), trajectory)
        if self._streaks.counts:
            self._streaks.worked(trajectory.task, trajectory.reward_worker, Kind.SCORE)
        self._leave_reward(trajectory)
        self._set(trajectory, State.SCORED)
        trajectory.reward, trajectory.success = event.reward, event.success
        self.hooks.on_scored(trajectory)

    def score_failed(self, event: ev.ScoreFailed) -> None:
        trajectory = self._current(event.trajectory, event.issue)
        if trajectory is None or trajectory.state is not State.SCORING:
            self._superseded()
            return
        if (worker := self.workers.get(trajectory.reward_worker)) is not None:
            worker.moved_s = self.now
            worker.failures += 1
        self._score_again(trajectory, event.detail)

    def lost(self, worker: Worker, reason: DropReason | None = None) -> None:
        """Issue again what it was playing, ask again for what it was generating, score again what it was scoring."""
        self._envs.drop(worker.name)
        self._rewards.drop(worker.name)
        mine, worker.trajectories = list(worker.trajectories.values()), {}
        for trajectory in mine:
            if worker.role == "env":
                trajectory.env = ""
                self.tally.dropped[reason or DropReason.ENV_WORKER_LOST] += 1
                self.again(trajectory)
            elif worker.role == "engine":
                self._lost_engine(trajectory, worker.name, reason or DropReason.ENGINE_LOST)
            else:
                if reason is not None:
                    self.tally.dropped[reason] += 1
                trajectory.reward_worker = ""
                self._set(trajectory, State.ENDED)
                self._to_score.appendleft(trajectory)

    def recall(self, worker: Worker) -> None:
        """The worker is alive but is set aside. Tell it to stop what others will do."""
        for trajectory in worker.trajectories.values():
            if worker.role == "env":
                self.emit(ev.CancelPlay(worker.name, trajectory.id, trajectory.issue, DropReason.WORKER_ASIDE))
            elif worker.role == "engine":
                if trajectory.server == worker.name:
                    self.emit(ev.AbortRequest(worker.name, trajectory.request))
                self.emit(ev.Forget(worker.name, trajectory.id))

    def overdue(self, trajectory: Trajectory) -> None:
        """A worker that answers others seems to have lost this turn or play. Ask another one."""
        if trajectory.state is State.GENERATING:
            self.tally.dropped[DropReason.TURN_TIMEOUT] += 1
            trajectory.overdue += 1
            trajectory.shuns = trajectory.server
            self._leave_engine(trajectory)
            self._has_yet_to_begin(trajectory)
            self._ask_again(trajectory)
        elif trajectory.state is State.STEPPING:
            waited = f"no answer in {self.now - trajectory.since_s:.0f} s"
            failure = Failure(DropReason.PLAY_TIMEOUT, waited, trajectory.env)
            self._leave_engine(trajectory)
            self._leave_env(trajectory, DropReason.PLAY_TIMEOUT)
            self.hooks.on_failed(trajectory, failure)

    def recall_requests(self) -> None:
        """The trainer was rolled back. Abort all requests: they run on versions that no longer exist."""
        for request, trajectory in list(self.requests.items()):
            self.emit(ev.AbortRequest(trajectory.server, request))
            self._take_request(request)
            self._has_yet_to_begin(trajectory)
            self._ask_again(trajectory)

    def tick(self, now: float) -> None:
        self.now = now
        while self._delayed and self._delayed[0][0] <= now:
            self._queue.appendleft(heapq.heappop(self._delayed)[2])
        self._expire_scores()

    # --- moving on ---------------------------------------------------------------------------

    def pump(self) -> None:
        """Spend all free credits of environments, engines and rewards, up to `BURST` new trajectories."""
        if self.rules.lockstep:
            self._release_lockstep()
        self.has_backlog = self._pump_envs()
        for trajectory, engine, stage in self.router.assign():
            self._generate(trajectory, engine, stage)
        self._pump_rewards()

    def _is_in_lockstep(self, trajectory: Trajectory) -> bool:
        return self.rules.lockstep and trajectory.is_training

    def _release_lockstep(self) -> None:
        """No environment is busy: generate. All have their answer: let the environments go on."""
        counts = self._counts[True]
        if counts[State.STEPPING]:
            return
        if self._held_turns:
            turns, self._held_turns = self._held_turns, []
            for trajectory in turns:
                if trajectory.state is State.WAITING and not trajectory.place:
                    self.router.enqueue(trajectory)
        elif not counts[State.WAITING] and not counts[State.GENERATING]:
            answers, self._held_answers = self._held_answers, []
            for trajectory in answers:
                if trajectory.state is State.ANSWERED:
                    self._deliver(trajectory, trajectory.request)

    def _pump_envs(self) -> bool:
        """Hand out queued trajectories. True if more could be handed out now."""
        queue, left = self._queue, BURST
        while queue and (first := self._envs.first()) is not None:
            if not left:
                return True
            trajectory = queue.popleft()
            if trajectory.state is State.QUEUED:
                left -= 1
                self._play(trajectory, self.workers[first[1]])
        return False

    def _play(self, trajectory: Trajectory, worker: Worker) -> None:
        self._spend(worker, trajectory)
        trajectory.env = worker.name
        self._set(trajectory, State.STEPPING)
        t = trajectory
        self.emit(ev.Play(worker.name, t.id, t.issue, t.task, t.seed, t.sample_seed))

    def _generate(self, trajectory: Trajectory, engine: Worker, stage: Stage) -> None:
        self.router.spend(trajectory, engine, stage)
        if trajectory.first_version < 0 and stage is not Stage.PREFILL and engine.installed is not None:
            trajectory.planned_version = engine.installed.version
            self.hooks.on_begun(trajectory)
        self._next_request += 1
        trajectory.request = self._next_request
        self._set(trajectory, State.GENERATING)
        self.requests[trajectory.request] = trajectory
        t, seed = trajectory, (trajectory.sample_seed * 1_000_003 + trajectory.turn) % (1 << 62)
        prefill_only, kv = stage is Stage.PREFILL, t.kv if stage is Stage.DECODE else ""
        self.emit(ev.Generate(engine.name, t.request, t.id, t.turn, self._temperature(t), seed, prefill_only, kv))

    def _temperature(self, trajectory: Trajectory) -> float:
        return self.rules.temperature if trajectory.is_training else self.rules.validation_temperature

    def _deliver(self, trajectory: Trajectory, request: int) -> None:
        trajectory.request = -1
        self._set(trajectory, State.STEPPING)
        self.emit(ev.Deliver(trajectory.env, request, trajectory.id))

    def _ask_again(self, trajectory: Trajectory) -> None:
        self._set(trajectory, State.STEPPING)
        self.emit(ev.AskAgain(trajectory.env, trajectory.id, trajectory.issue, trajectory.turn))

    def _rewards_wait(self) -> bool:
        return self.rules.rewards_last and self._num_playing(True) > 0

    def _pump_rewards(self) -> None:
        queue = self._to_score
        if not queue or self._rewards_wait():
            return
        while queue and (first := self._rewards.first()) is not None:
            trajectory = queue.popleft()
            if trajectory.state is not State.ENDED:
                continue
            worker = self.workers[first[1]]
            self._spend(worker, trajectory)
            trajectory.reward_worker = worker.name
            # A worker scores one call at a time and enforces its own timeout. This deadline is the backup.
            deadline_s = self.now + self.rules.reward_timeout_s * (worker.load + 1)
            self._serial += 1
            heapq.heappush(self._deadlines, (deadline_s, self._serial, trajectory, trajectory.issue))
            self._set(trajectory, State.SCORING)
            self.emit(ev.Score(worker.name, trajectory.id, trajectory.issue, trajectory.task))

    # --- credits of environments and rewards -------------------------------------------------

    def _moved(self, worker: Worker | None, trajectory: Trajectory) -> None:
        """The worker gave a good answer about this trajectory. Note how long it was silent before."""
        if worker is None:
            return
        now = self.now
        if worker.moved_s != now:
            silent_s = now - max(worker.moved_s, trajectory.since_s)
            worker.moved_s = now
            worker.pace.top = max(worker.pace.top, silent_s)
        if worker.failures:
            worker.failures = 0
            self._rank(worker)
        if not worker.has_answered:
            worker.has_answered = True
            worker.pace.top = max(worker.pace.top, 0.0)
            self.hooks.on_proved(worker)

    def full(self, worker: Worker) -> None:
        """Its trial is over: it gets all its credits."""
        worker.capacity, worker.full_capacity = worker.full_capacity, 0
        self._rank(worker)

    def _spend(self, worker: Worker, trajectory: Trajectory) -> None:
        worker.load += 1
        worker.trajectories[trajectory.id] = trajectory
        self._rank(worker)

    def _give_back(self, name: str, trajectory: Trajectory) -> None:
        worker = self.workers.get(name)
        if worker is not None:
            worker.load -= 1
            del worker.trajectories[trajectory.id]
            self._rank(worker)

    def _rank(self, worker: Worker) -> None:
        ranking = {"env": self._envs, "reward": self._rewards}.get(worker.role)
        if ranking is None:
            return
        if worker.room > 0:
            # A worker that fails is soon free again: without the penalty it would get everything.
            penalty = min(worker.failures / self.rules.quarantine_after, 1.0)
            ranking.put(worker.name, (worker.load / worker.capacity + penalty,))
        else:
            ranking.drop(worker.name)

    # --- undoing -----------------------------------------------------------------------------

    def _expire_scores(self) -> None:
        while self._deadlines and self._deadlines[0][0] < self.now:
            *_, trajectory, issue = heapq.heappop(self._deadlines)
            if trajectory.state is State.SCORING and trajectory.issue == issue:
                self.tally.dropped[DropReason.SCORE_TIMEOUT] += 1
                trajectory.issue += 1  # a late answer is superseded
                worker = self.workers[trajectory.reward_worker]
                waited = f"no answer in {self.now - trajectory.since_s:.0f} s"
                self._score_again(trajectory, waited)
                self.hooks.on_overdue(worker, f"a score of task {trajectory.task}: {waited}")

    def _score_again(self, trajectory: Trajectory, detail: str) -> None:
        failure = Failure(DropReason.REWARD_FAILED, detail, trajectory.reward_worker)
        self._leave_reward(trajectory)
        self.hooks.on_score_failed(trajectory, failure)
        if trajectory.state is State.GONE:
            return  # its task was quarantined
        trajectory.score_failures += 1
        if trajectory.score_failures > self.rules.reward_retries:
            self.hooks.on_failed(trajectory, failure)
            return
        self._set(trajectory, State.ENDED)
        self._to_score.append(trajectory)

    def _lost_engine(self, trajectory: Trajectory, name: str, reason: DropReason) -> None:
        if trajectory.prefiller == name:
            trajectory.prefiller = ""
        if trajectory.engine == name:
            trajectory.engine = ""
        if trajectory.server == name:
            self.requests.pop(trajectory.request, None)
            trajectory.request, trajectory.server = -1, ""
            self._has_yet_to_begin(trajectory)
            self.tally.dropped[reason] += 1
            self._ask_again(trajectory)

    def _answered(self, request: int) -> Trajectory | None:
        """An engine answered this request. Its trajectory, unless the answer came too late."""
        trajectory = self.requests.get(request)
        if trajectory is not None:
            self._moved(self.workers.get(trajectory.server), trajectory)
            turn_s = self.now - trajectory.since_s
            self._turns.top = max(self._turns.top, turn_s)
        return self._take_request(request)

    def _take_request(self, request: int) -> Trajectory | None:
        trajectory = self.requests.pop(request, None)
        if trajectory is None:
            self._superseded()
            return None
        self.router.give_back(trajectory)
        trajectory.request = -1
        return trajectory

    def _leave_engine(self, trajectory: Trajectory) -> None:
        if trajectory.server:
            del self.requests[trajectory.request]
            self.emit(ev.AbortRequest(trajectory.server, trajectory.request))
            self.router.give_back(trajectory)
        trajectory.request = -1
        self.router.release(trajectory)

    def _leave_env(self, trajectory: Trajectory, reason: str) -> None:
        if trajectory.env and trajectory.state in PLAYING:
            self.emit(ev.CancelPlay(trajectory.env, trajectory.id, trajectory.issue, reason))
        self._free_env(trajectory)

    def _free_env(self, trajectory: Trajectory) -> None:
        if trajectory.env:
            self._give_back(trajectory.env, trajectory)
        trajectory.env = ""

    def _leave_reward(self, trajectory: Trajectory) -> None:
        if trajectory.reward_worker:
            self._give_back(trajectory.reward_worker, trajectory)
        trajectory.reward_worker = ""

    def _current(self, name: str, issue: int) -> Trajectory | None:
        trajectory = self.all.get(name)
        return trajectory if trajectory is not None and trajectory.issue == issue else None

    def _superseded(self) -> None:
        self.tally.dropped[DropReason.SUPERSEDED] += 1
