"""The flow of a run as a state machine: events in, commands out. No socket, no clock, no torch.

    task mix -> group -> trajectories -> scored -> group complete -> buffer -> batch -> step
             -> new policy_version -> engines (publish) -> admission of new groups

Who waits for what:

| what                 | waits for                        | is woken by                          |
|----------------------|----------------------------------|--------------------------------------|
| admission            | groups_per_step x (1 + alpha)    | step committed, group dropped        |
| queued trajectory    | a free environment slot          | trajectory ended, env worker joined  |
| wanted turn          | an engine fresh enough, a credit | installed, generated, engine joined  |
| ended trajectory     | a reward worker                  | scored, reward worker joined         |
| batch                | groups of each task by the mix   | group complete                       |
| checkpoint, the end  | the trainer                      | saved                                |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.admission import Admission
from rollart_hpc.flow.batches import Batches
from rollart_hpc.flow.bench import Bench, Return
from rollart_hpc.flow.mix import TaskMix
from rollart_hpc.flow.publish import Publisher
from rollart_hpc.flow.routing import Router
from rollart_hpc.flow.rules import FlowRules
from rollart_hpc.flow.snapshot import groups_of, snapshot_of
from rollart_hpc.flow.state import Failure, Group, State, Tally, TaskTally, Trajectory, Worker
from rollart_hpc.flow.streaks import Kind, Streaks
from rollart_hpc.flow.trajectories import Hooks, Trajectories
from rollart_hpc.flow.validate import Validator
from rollart_hpc.flow.watch import Watch
from rollart_hpc.types import WeightsId
from rollart_hpc.vocabulary import DropReason, EventKind, RunState

# Events that count as progress. A failing retry does not.
MOVES = {ev.Generated, ev.Prefilled, ev.Ended, ev.Scored, ev.Committed, ev.Installed, ev.Saved}
SAVE_AGAIN_S = 2.0  # until a failed save is tried again at the end of a run; doubled each time
CREDITED = ("env", "engine", "reward")
NEVER = 1 << 60  # a version that no engine has


class Core:
    def __init__(self, rules: FlowRules, attempt: int = 1, saved: dict[str, Any] | None = None) -> None:
        self.rules = rules
        self.attempt = attempt
        self.version = 0  # the trainer's: steps committed
        self.stopped: RunState | None = None
        self.tap: Callable[[ev.Event, list[ev.Command]], None] | None = None  # sees all events and their commands
        self.draining = ""
        self.saving: int | None = None
        self.saved_version = -1
        self.failed_saves = 0  # in a row
        self._save_again_s = 0.0  # not before: the end of a run does not wait for the next step
        self._first_step = 0
        self._now = 0.0
        self._batch_size = rules.groups_per_step * rules.group_size
        self.workers: dict[str, Worker] = {}
        self.tally = Tally(tasks={task: TaskTally() for task in rules.tasks})
        self.mix = TaskMix({name: task.weight for name, task in rules.tasks.items()}, rules.groups_per_step)
        self.validator = Validator(rules)
        self._out: list[ev.Command] = []
        self.router = Router(rules, self.tally, self._emit, self._usable_version, self._oldest_version, self._on_idle)
        self.watch, self.bench, self.streaks = Watch(rules), Bench(), Streaks()
        self._skipped_updates = 0  # in a row
        self._was_at_barrier = False
        hooks = Hooks(
            self._on_turn,
            self._on_begun,
            self._on_scored,
            self._on_failed,
            self._blame,
            self._on_proved,
            self._set_aside,
        )
        self.trajectories = Trajectories(
            rules, self.tally, self.workers, self.router, self._emit, hooks, self.streaks, self.watch.turns
        )
        self.batches = Batches(rules, self.mix, self._emit, lambda: self.admission.oldest_incomplete())  # noqa: PLW0108 - made below
        self.admission = Admission(rules, self.tally, self.mix, self.trajectories, self.batches)
        self.groups = self.admission.groups
        self.publisher = Publisher(
            rules, self.tally, self.workers, self._emit, self._may_install, self._should_install, self._changed,
            self.watch.installs,
        )  # fmt: skip
        self._handlers = {
            ev.Joined: self._joined, ev.Lost: self._lost, ev.Tick: self._tick, ev.Beat: self._beat,
            ev.GoOn: lambda _: None, ev.TurnWanted: self.trajectories.turn_wanted,
            ev.Generated: self.trajectories.generated, ev.Prefilled: self.trajectories.prefilled,
            ev.PrefixMissing: self.trajectories.prefix_missing, ev.Ended: self.trajectories.ended,
            ev.Scored: self.trajectories.scored, ev.ScoreFailed: self.trajectories.score_failed,
            ev.BatchWanted: self._batch_wanted, ev.Committed: self._committed, ev.Saved: self._saved,
            ev.Published: self._published, ev.Held: self._held, ev.TransferReady: self._transfer_ready,
            ev.TransferFailed: self._transfer_failed, ev.TransferSent: self._transfer_sent,
            ev.Installed: self._installed, ev.InstallFailed: self._install_failed, ev.DrainWanted: self._drain_wanted,
            ev.SaveWanted: self._save_wanted, ev.EndNear: self._end_near,
        }  # fmt: skip
        if saved is not None:
            self._restore(saved)

    def handle(self, event: ev.Event) -> list[ev.Command]:
        """Handle one event. The caller carries out the returned commands in order."""
        if self.stopped:
            return []
        kind = type(event)
        self._handlers[kind](event)  # type: ignore[operator]
        if kind in MOVES and getattr(event, "failure", None) is None:
            self.tally.progress += 1
        if not self.stopped:
            self._advance()
        out, self._out = self._out, []
        if self.tap is not None:
            self.tap(event, out)
        return out

    @property
    def has_backlog(self) -> bool:
        """True if more work is ready; feed `GoOn` to do it when no other event is waiting."""
        if self.stopped:
            return False
        more_groups = self.admission.is_due and self._may_admit()
        return more_groups or self.trajectories.has_backlog or self.batches.has_backlog

    def settle(self, event: ev.Event) -> list[ev.Command]:
        """Handle one event and the whole backlog, for callers that have no other events waiting."""
        out = self.handle(event)
        while self.has_backlog:
            out += self.handle(ev.GoOn())
        return out

    def is_expected(self, trajectory: str, issue: int) -> bool:
        """True if this issue is with its environment. Messages from replaced workers are not expected."""
        return self.trajectories.is_stepping(trajectory, issue)

    def has_request(self, request: int) -> bool:
        return request in self.trajectories.requests

    def _emit(self, command: ev.Command) -> None:
        self._out.append(command)

    def _advance(self) -> None:
        """After every event: admit, dispatch, batch, finish."""
        if not self.mix.tasks:
            each = [f"{name}: {task.quarantine_reason}" for name, task in self.tally.tasks.items() if task.quarantined]
            self._stop(RunState.FAILED, f"all tasks are quarantined: {'; '.join(each)}")
            return
        self._validate_if_due()
        if self.admission.is_due and self._may_admit():
            self.admission.admit(self.version, self.attempt)
        if self.rules.barrier:
            self._install_at_barrier()
        self.trajectories.pump()
        taken = self.batches.fill()
        if taken:
            self.admission.take(taken)
            if self.batches.is_closed:
                self._look_at_ages()
        self._finish_if_done()

    def _may_admit(self) -> bool:
        return self.publisher.newest is not None and not self.validator.blocks_training and not self.draining

    def _look_at_ages(self) -> None:
        """The next step changed. Drop stale groups, and check again which engines are new enough."""
        self.admission.sweep_stale()
        self.router.look_again()

    # --- membership --------------------------------------------------------------------------

    def _joined(self, event: ev.Joined) -> None:
        self._lost(ev.Lost(event.worker, "replaced"))
        what = event.role, event.node, event.pool, event.capacity, event.num_ranks, event.kv_tokens, event.speed
        worker = Worker(event.worker, *what)
        if event.role == "trainer" and event.capacity > 0:
            self.workers[event.worker] = worker
            self._trainer_joined(worker, event)
        self._enter(worker, on_trial=self.bench.is_repeated(event.worker, self._now))

    def _enter(self, worker: Worker, on_trial: bool) -> None:
        if on_trial and worker.role in CREDITED:
            worker.full_capacity, worker.capacity = worker.capacity, 1
        self.workers[worker.name] = worker
        self.watch.joined(worker)
        self.trajectories.joined(worker)
        if worker.role == "engine":
            self.router.join(worker)
        self.publisher.joined(worker)

    def _lost(self, event: ev.Lost) -> None:
        self.bench.forget(event.worker)
        self.streaks.forget_worker(event.worker)
        worker = self.workers.get(event.worker)
        if worker is not None:
            self._remove(worker)

    def _remove(self, worker: Worker, reason: DropReason | None = None) -> None:
        del self.workers[worker.name]
        self.watch.left(worker)
        if worker.role == "engine":
            self.router.leave(worker)
        self.trajectories.lost(worker, reason)
        if self.publisher.trainer is worker:
            self.publisher.trainer = None
            self.saving = None
            self.admission.give_back(self.batches.abandon())
        self.publisher.lost(worker)

    def _trainer_joined(self, worker: Worker, event: ev.Joined) -> None:
        self.publisher.trainer = worker
        if event.attempt != self.attempt:
            self._roll_back(event.attempt, event.version)
        # A trainer of this attempt whose connection broke exits and comes back restored, as a new attempt.

    def _roll_back(self, attempt: int, version: int) -> None:
        """The trainer was restored. Versions above `version` no longer exist, and engines must install again."""
        self.tally.dropped[DropReason.TRAINED_ROLLED_BACK] += (self.version - version) * self._batch_size
        self.attempt, self.version = attempt, version
        self._first_step = version
        self.saved_version = version if version == self.saved_version else -1
        self.admission.is_due = True
        self.admission.give_back(self.batches.abandon())
        self.batches.step = version
        self.publisher.restored()
        for engine in self.router.engines.values():
            self.router.changed(engine)
        self.trajectories.recall_requests()
        for group in list(self.groups.values()):
            if group.newest_version > version:
                self.admission.drop(group, DropReason.ROLLED_BACK)
        self.admission.trim(version, DropReason.ROLLED_BACK)
        is_void = self.validator.roll_back(version)
        for trajectory in [t for t in self.trajectories.all.values() if not t.is_training]:
            if is_void or trajectory.last_version > version:
                self.tally.dropped[DropReason.VALIDATION_ROLLED_BACK] += 1
            if is_void:
                self.trajectories.leave(trajectory, DropReason.ROLLED_BACK)
            elif trajectory.last_version > version:
                self.trajectories.again(trajectory)

    # --- workers that do not do their work ---------------------------------------------------

    def _look_after_workers(self, now: float) -> None:
        for worker in self.watch.tick(now):
            look = self.watch.look(worker)
            if look.reason:
                self._set_aside(worker, look.reason)
            for trajectory in look.late:
                self.trajectories.overdue(trajectory)
        if self.bench.aside:
            for entry in self.bench.to_replace(now):
                self._emit(ev.Replace(entry.worker.name, entry.reason))
            for back in self.bench.returns(now):
                self._bring_back(back)

    def _beat(self, event: ev.Beat) -> None:
        worker = self.workers.get(event.worker)
        if worker is None:
            self.bench.heard(event.worker, event.age_s, self._now)
        elif event.work:
            worker.moved_s = self._now
        elif self.watch.is_stuck(worker, event.age_s):
            self._set_aside(worker, f"its main loop has been blocked for {event.age_s:.0f} s")

    def _set_aside(self, worker: Worker, reason: str, task: str = "") -> None:
        """Give its work to others and no more to it. Without a `task` that failed there, it owed answers."""
        if self.workers.get(worker.name) is not worker:
            return
        self.trajectories.recall(worker)
        self._remove(worker, DropReason.WORKER_ASIDE)
        self.bench.put(worker, reason, self._now, hangs=not task, task=task)
        self._emit(ev.Warn(EventKind.WORKER_ASIDE, worker.name, f"{worker.role} on node {worker.node}: {reason}"))

    def _bring_back(self, back: Return) -> None:
        old = back.aside.worker
        capacity = old.full_capacity or old.capacity
        what = old.role, old.node, old.pool, capacity, old.num_ranks, old.kv_tokens, old.speed
        self._enter(Worker(old.name, *what), back.on_trial)
        how = "on trial, with one piece of work" if back.on_trial else "with all its work"
        self._emit(ev.Warn(EventKind.WORKER_BACK, old.name, f"{old.role} on node {old.node}: {how}"))

    def _on_proved(self, worker: Worker) -> None:
        """Its first good answer."""
        if worker.full_capacity:
            self.trajectories.full(worker)
            self._changed(worker)

    def _blame(self, trajectory: Trajectory, failure: Failure) -> None:
        """A play or score failed there. The worker is at fault, unless the task fails at another one too."""
        worker = self.workers.get(failure.worker)
        if worker is None or self.admission.is_ending:
            return
        task, limit, kind = trajectory.task, self.rules.quarantine_after, Kind.STEP
        if failure.reason is DropReason.REWARD_FAILED:
            kind, limit = Kind.SCORE, limit * (1 + self.rules.reward_retries)
        elif failure.reason.is_reset:
            kind = Kind.RESET
        count = self.streaks.failed(task, worker.name, kind, trajectory.turn if kind is Kind.STEP else 0)
        if count < limit or self.tally.tasks[task].quarantined:
            return
        what = f"{count} {kind} in a row failed, the last with {failure}"
        if self.watch.has_others(worker.role) and self.streaks.num_failing(task, kind, limit) < 2:
            self._set_aside(worker, f"task {task}: {what}", task)
            return
        self.streaks.forget_task(task)
        self.admission.quarantine(task, what)
        for back in self.bench.release(task):
            self._bring_back(back)

    # --- trajectories ------------------------------------------------------------------------

    def _on_turn(self, trajectory: Trajectory) -> bool:
        group = trajectory.group
        if group is not None and self.rules.abort_stale and self.admission.is_stale(group):
            self.admission.drop(group, DropReason.GROUP_STALE)
            return False
        return True

    def _on_begun(self, trajectory: Trajectory) -> None:
        if trajectory.group is not None:
            self.admission.ages.note(trajectory.group)

    def _on_scored(self, trajectory: Trajectory) -> None:
        if trajectory.group is None:
            self._validated(trajectory)
            return
        tally = self.tally.tasks[trajectory.task]
        tally.trajectories += 1
        tally.successes += trajectory.success
        tally.reward_sum += trajectory.reward
        self.admission.scored(trajectory.group)

    def _on_failed(self, trajectory: Trajectory, failure: Failure) -> None:
        """A failed trajectory is data: count it, then retry after a delay, within limits."""
        self.tally.dropped[failure.reason] += 1
        trajectory.failures += 1
        task = self.tally.tasks[trajectory.task]
        if not task.last_error:
            self._emit(ev.Warn(EventKind.TASK_FAILED, trajectory.task, str(failure)))
        task.last_error = str(failure)
        if failure.reason.blames_worker and failure.reason is not DropReason.REWARD_FAILED:
            self._blame(trajectory, failure)
        if trajectory.state is State.GONE:
            return
        group, limit = trajectory.group, self.rules.quarantine_after
        if group is None and (task.quarantined or trajectory.failures > limit):
            self._validated(trajectory, has_failed=True)
            return
        if group is not None:
            group.failures += 1
            if group.failures > limit * len(group.members):
                self.admission.drop(group, DropReason.GROUP_FAILED)
                return
        self.trajectories.again(trajectory, self.trajectories.backoff_s(trajectory.failures))

    # --- engines -----------------------------------------------------------------------------

    def _usable_version(self, engine: Worker) -> int | None:
        """The version the engine generates with; None if it has no weights of this attempt."""
        installed = engine.installed
        return installed.version if installed is not None and installed.attempt == self.attempt else None

    def _oldest_version(self, trajectory: Trajectory, is_home: bool) -> int:
        """The oldest version that may serve this turn, on the engine that holds the trajectory or on another one.

        An engine more than alpha behind gets no requests. With `install_idle` an engine finishes the trajectories it
        holds, and starts new ones only on the newest version. With `barrier` a batch is generated on the version that
        it was opened on: the newest one is installed when all of it is complete.
        """
        rules = self.rules
        has_begun = trajectory.first_version >= 0
        validation = self.validator.running
        if validation is not None and not trajectory.is_training and not has_begun:
            return validation.version
        group = trajectory.group
        oldest = 0 if has_begun or group is None else self.admission.oldest_start(group, self.version)
        if not rules.install_idle:
            return max(oldest, self.version - rules.alpha)
        if is_home or rules.barrier:
            return oldest
        newest = self.publisher.newest
        is_published = newest is not None and newest == (self.attempt, self.version)
        return max(oldest, self.version) if is_published else NEVER

    def _on_idle(self, engine: Worker) -> None:
        self.publisher.is_idle(engine)

    def _changed(self, worker: Worker) -> None:
        if worker.role == "engine":
            self.router.changed(worker)

    def _may_install(self, engine: Worker) -> bool:
        is_foreign = self._usable_version(engine) is None
        return is_foreign or not self.rules.install_idle or not engine.trajectories

    def _should_install(self, engine: Worker) -> bool:
        """False: with `barrier`, the batch that is being generated wants the weights that the engine has."""
        if not self.rules.barrier:
            return True
        version = self._usable_version(engine)
        return version is None or version < self.admission.opened_at or self._is_at_barrier()

    def _is_at_barrier(self) -> bool:
        """True if no group that is being generated wants older weights than the newest."""
        newest = self.publisher.newest
        return self.admission.is_whole or (newest is not None and self.admission.opened_at >= newest.version)

    def _install_at_barrier(self) -> None:
        was_at_barrier, self._was_at_barrier = self._was_at_barrier, self._is_at_barrier()
        if self._was_at_barrier and not was_at_barrier:
            self.publisher.look_again()

    # --- training ----------------------------------------------------------------------------

    def _batch_wanted(self, event: ev.BatchWanted) -> None:
        trainer = self.publisher.trainer
        if trainer is None or event.version != self.version or self.version >= self.rules.steps:
            return
        if self.batches.trainer:  # it lost its chunks: start the batch over
            self.admission.give_back(self.batches.abandon())
        self.batches.open(self.version, trainer.name)
        self._look_at_ages()

    def _committed(self, event: ev.Committed) -> None:
        if event.version != self.version + 1 or not self.batches.is_closed:
            return
        if event.version - 1 > self._first_step:  # the first wait includes the start of the run
            self.tally.wait_s += event.wait_s
            self.tally.train_s += event.train_s
        self.tally.updates_skipped += event.is_skipped
        self._skipped_updates = self._skipped_updates + 1 if event.is_skipped else 0
        trained = self.batches.commit()
        self._emit(ev.RecordStep(event.version, self.attempt, tuple(trained)))
        for group in trained:
            self._trained(group)
        self.version = event.version
        self.admission.is_due = True
        self._choose_pools()
        self.mix.forget_before(max(self.saved_version, 0))  # a restore goes back that far
        self._look_at_ages()
        if event.is_skipped:
            self._tell_of_skipped_update()
        every = self.rules.checkpoint_every
        if self.draining or self.failed_saves or (every and self.version % every == 0):
            self._save()

    def _choose_pools(self) -> None:
        engines = {name: len(pool.engines) for name, pool in self.router.pools.items()}
        for change in self.router.affinity.look(self.version, engines, self.mix.tasks):
            what = f"{change.after} instead of {change.before}: {change.reason}"
            self._emit(ev.Warn(EventKind.AFFINITY, change.task, what))

    def _tell_of_skipped_update(self) -> None:
        count, limit = self._skipped_updates, self.rules.max_skipped_updates
        if count == 1:
            what = "its gradients are not finite, so the weights stay as they are"
            self._emit(ev.Warn(EventKind.UPDATE_SKIPPED, f"step {self.version}", what))
        if count > limit:
            self._stop(
                RunState.FAILED,
                f"{count} updates in a row were skipped because their gradients are not finite (limit "
                f"{limit}, trainer.max_skipped_updates): look at rewards, log-probs and trainer.lr, then resume "
                "the run",
            )

    def _trained(self, group: Group) -> None:
        self.tally.tasks[group.task].groups += 1
        for member in group.members:
            self.tally.staleness[self.version - member.first_version] += 1
            self.trajectories.forget(member)
        self.admission.forget(group)

    def _published(self, event: ev.Published) -> None:
        newest = self.publisher.newest  # a late duplicate must not take engines back to an older version
        if event.weights.attempt == self.attempt and (newest is None or event.weights >= newest):
            self.publisher.published(event.weights)

    # --- weights -----------------------------------------------------------------------------

    def _held(self, event: ev.Held) -> None:
        if event.relay in self.workers and event.weights.attempt == self.attempt:
            self.publisher.held(self.workers[event.relay], event.weights)

    def _transfer_ready(self, event: ev.TransferReady) -> None:
        self.publisher.ready(event.epoch, event.host, event.port, event.secret)

    def _transfer_failed(self, event: ev.TransferFailed) -> None:
        self.publisher.paid(event.worker, epoch=event.epoch)
        if event.epoch:
            self.publisher.failed(event.epoch)
        elif (worker := self.workers.get(event.worker)) is not None and worker.role == "relay":
            self.publisher.spoiled(worker)

    def _transfer_sent(self, event: ev.TransferSent) -> None:
        if self.rules.collective == "mpi" and event.collective != "mpi":
            self.tally.transfer_fallbacks += 1

    def _installed(self, event: ev.Installed) -> None:
        if event.engine in self.workers:
            self.tally.install_s += event.seconds
            self.tally.exposed_s += event.exposed_s
            self.tally.install_bytes += event.num_bytes
            self.publisher.installed(self.workers[event.engine], event.weights)
            self._be_patient()

    def _install_failed(self, event: ev.InstallFailed) -> None:
        if event.engine in self.workers:
            self.publisher.install_failed(self.workers[event.engine], event.weights)

    # --- validation --------------------------------------------------------------------------

    def _validate_if_due(self) -> None:
        if self.draining or not self.validator.is_due(self.version):
            return
        if self.publisher.newest == WeightsId(self.attempt, self.version):
            for trajectory in self.validator.begin(self.version, list(self.mix.tasks), self.attempt):
                self.trajectories.enter(trajectory)

    def _validated(self, trajectory: Trajectory, has_failed: bool = False) -> None:
        done = self.validator.add(trajectory, has_failed)
        trajectory.state = State.GONE
        self.trajectories.forget(trajectory)
        if done is not None:
            self._emit(ev.ValidationDone(done.version))

    # --- checkpoint and end ------------------------------------------------------------------

    def _save(self) -> None:
        if self.publisher.trainer is not None and self.saving != self.version:
            self.saving = self.version
            self._emit(ev.SaveCheckpoint(self.publisher.trainer.name, self.version))

    def _saved(self, event: ev.Saved) -> None:
        if event.version != self.saving:
            return
        self.saving = None
        if not event.error:
            self.saved_version, self.failed_saves = event.version, 0
            return
        if event.version != self.version:  # the trainer was already further
            return
        self.failed_saves += 1
        what = f"the checkpoint of version {event.version} could not be written: {event.error}"
        if self.failed_saves >= self.rules.save_tries:
            self._stop(RunState.FAILED, f"{what} ({self.failed_saves} failed in a row, checkpoint.tries)")
        else:
            self._save_again_s = self._now + SAVE_AGAIN_S * 2 ** (self.failed_saves - 1)
            left = self.rules.save_tries - self.failed_saves
            self._emit(ev.Warn(EventKind.SAVE_FAILED, str(event.version), f"{event.error} ({left} tries left)"))

    def _drain_wanted(self, event: ev.DrainWanted) -> None:
        self.draining = event.reason
        self.admission.is_ending = True
        if event.at_once or self.publisher.trainer is None:
            self._stop(RunState.DRAINED, event.reason)
        elif self.saved_version != self.version:
            self._save()

    def _save_wanted(self, _: ev.SaveWanted) -> None:
        if self.saved_version != self.version:
            self._save()

    def _end_near(self, event: ev.EndNear) -> None:
        worker = self.workers.get(event.worker)
        if worker is None or worker.role not in ("engine", "trainer", "relay"):  # those may have jobs of their own
            self.admission.is_ending = True

    def _finish_if_done(self) -> None:
        if self.stopped or self.saving is not None or self.publisher.trainer is None:
            return
        if self.draining:
            if self.saved_version == self.version:
                self._stop(RunState.DRAINED, self.draining)
            elif self.failed_saves and self._now >= self._save_again_s:
                self._save()
            return
        if self.version < self.rules.steps or self.validator.running or self._final_validation_missing():
            return
        if self.saved_version == self.version:
            self._stop(RunState.FINISHED, f"all {self.rules.steps} steps are done")
        elif self._now >= self._save_again_s:
            self._save()

    def _final_validation_missing(self) -> bool:
        return self.rules.validation_plays > 0 and not self.validator.has(self.rules.steps)

    def _stop(self, state: RunState, reason: str) -> None:
        self.stopped = state
        self.tally.dropped[DropReason.RUN_ENDED] += sum(t.is_training for t in self.trajectories.all.values())
        self._emit(ev.StopRun(state, reason))

    def _tick(self, event: ev.Tick) -> None:
        self._now = event.now
        self.trajectories.tick(event.now)
        self.publisher.tick(event.now)
        self.admission.tick(event.now)
        self._look_after_workers(event.now)
        self._be_patient()

    def _be_patient(self) -> None:
        is_patient = self._now < self.publisher.patient_until_s
        if self.router.is_patient and not is_patient:
            self.router.look_again()
        self.router.is_patient = is_patient

    # --- snapshot ----------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """The state that a checkpoint keeps: complete groups and counters. Running trajectories are played again."""
        return snapshot_of(self)

    def _restore(self, saved: dict[str, Any]) -> None:
        self.version = self.saved_version = self.batches.step = saved["version"]
        self.admission.num_groups = saved["num_groups"]
        self.admission.next_index.update(saved["group_index"])
        self.tally.restore(saved["tally"])
        self.mix.restore(saved["mix"], [name for name, task in self.tally.tasks.items() if task.quarantined])
        self.validator.restore(saved["validations"])
        self.router.affinity.restore(saved.get("affinity", {}))
        for name, task in self.tally.tasks.items():
            if task.quarantined:
                self.admission.expect(name)
        self._first_step = self.version
        for group in groups_of(saved["groups"]):
            if group.task in self.mix.tasks and len(group.members) == self.rules.group_size:
                self.admission.take_back(group)
            else:
                self.tally.dropped[DropReason.NO_PLACE] += len(group.members)
        self.admission.trim(self.version, DropReason.NO_PLACE)
