"""The flow of a run as a state machine: events in, commands out. No socket, no clock, no torch.

    task mix -> group -> trajectories (plays) -> scored -> group complete -> buffer -> batch -> step
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

from collections import Counter
from typing import Any

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.batches import Batches
from rollart_hpc.flow.mix import TaskMix
from rollart_hpc.flow.plays import Hooks, Plays
from rollart_hpc.flow.policy import Policy
from rollart_hpc.flow.publish import Publisher
from rollart_hpc.flow.routing import Router
from rollart_hpc.flow.snapshot import groups_of, snapshot_of
from rollart_hpc.flow.state import PLAYING, Group, State, Tally, TaskTally, Trajectory, Worker
from rollart_hpc.flow.validate import Validator
from rollart_hpc.types import WeightsId


class Core:
    def __init__(self, policy: Policy, attempt: int = 1, saved: dict[str, Any] | None = None) -> None:
        self.policy = policy
        self.attempt = attempt
        self.version = 0  # the trainer's: steps committed
        self.stopped = ""  # "" | finished | drained | failed
        self.draining = ""
        self.saving: int | None = None
        self.saved_version = -1
        self.workers: dict[str, Worker] = {}
        self.tally = Tally(tasks={task: TaskTally() for task in policy.tasks})
        self.mix = TaskMix({name: task.weight for name, task in policy.tasks.items()}, policy.groups_per_step)
        self.validator = Validator(policy)
        self.groups: dict[int, Group] = {}
        self.num_groups = 0
        self.group_index: Counter[str] = Counter()
        self._completed = 0
        self._reset_failures: Counter[str] = Counter()
        self._dropped_groups: Counter[str] = Counter()
        self._may_admit = True
        self._out: list[ev.Command] = []
        self.router = Router(policy, self.tally, self._may_serve)
        hooks = Hooks(self._on_reset, self._on_turn, self._on_scored, self._on_failed)
        self.plays = Plays(policy, self.tally, self.workers, self.router, self._emit, hooks)
        self.batches = Batches(policy, self.mix, self._emit, self._oldest_incomplete)
        self.publisher = Publisher(policy, self.tally, self.workers, self._emit, self._may_install)
        self._handlers = {
            ev.Joined: self._joined, ev.Lost: self._lost, ev.Tick: self._tick,
            ev.TurnWanted: self.plays.turn_wanted, ev.Generated: self.plays.generated,
            ev.PrefixMissing: self.plays.prefix_missing, ev.Ended: self.plays.ended,
            ev.Scored: self.plays.scored, ev.ScoreFailed: self.plays.score_failed,
            ev.BatchWanted: self._batch_wanted, ev.Committed: self._committed, ev.Saved: self._saved,
            ev.Published: self._published, ev.Held: self._held, ev.TransferReady: self._transfer_ready,
            ev.TransferFailed: lambda e: self.publisher.failed(e.epoch), ev.TransferSent: lambda e: None,
            ev.Installed: self._installed, ev.InstallFailed: self._install_failed, ev.DrainWanted: self._drain_wanted,
        }  # fmt: skip
        if saved is not None:
            self._restore(saved)

    def handle(self, event: ev.Event) -> list[ev.Command]:
        """Take in one event; the commands are to be carried out in order."""
        if self.stopped:
            return []
        self._handlers[type(event)](event)  # type: ignore[operator]
        if not isinstance(event, ev.Tick):
            self.tally.progress += 1
        if not self.stopped:
            self._advance()
        out, self._out = self._out, []
        return out

    def _emit(self, command: ev.Command) -> None:
        self._out.append(command)

    def _advance(self) -> None:
        """Whatever the event was: admit, dispatch, batch, finish."""
        self._validate_if_due()
        self._admit()
        self.plays.pump()
        if self.batches.fill():
            self._sweep_stale()
        self._finish_if_done()

    # --- membership --------------------------------------------------------------------------

    def _joined(self, event: ev.Joined) -> None:
        if event.worker in self.workers:
            self._lost(ev.Lost(event.worker, "replaced"))
        worker = Worker(event.worker, event.role, event.node, event.pool, event.capacity)
        self.workers[event.worker] = worker
        self.tally.joined[event.role] += 1
        if event.role == "engine":
            self.router.engines[event.worker] = worker
        if event.role == "trainer" and event.capacity > 0:
            self._trainer_joined(worker, event)
        self.publisher.joined(worker)

    def _lost(self, event: ev.Lost) -> None:
        worker = self.workers.pop(event.worker, None)
        if worker is None:
            return
        self.tally.lost[worker.role] += 1
        self.router.engines.pop(worker.name, None)
        self.plays.lost(worker)
        if self.publisher.trainer is worker:
            self.publisher.trainer = None
            self.saving = None
            self.batches.abandon()
        self.publisher.lost(worker)

    def _trainer_joined(self, worker: Worker, event: ev.Joined) -> None:
        self.publisher.trainer = worker
        if event.attempt != self.attempt or event.version != self.version:
            self._roll_back(event.attempt, event.version)

    def _roll_back(self, attempt: int, version: int) -> None:
        """The trainer was restored: versions above `version` never were, engines must install again."""
        self.attempt, self.version = attempt, version
        self.saved_version = version if version == self.saved_version else -1
        self._may_admit = True
        self.batches.abandon()
        self.batches.step = version
        self.publisher.restored()
        self.plays.recall_requests()
        for group in list(self.groups.values()):
            if group.newest_version > version:
                self._drop_group(group, "rolled_back")
        is_void = self.validator.roll_back(version)
        for trajectory in [t for t in self.plays.all.values() if not t.is_training]:
            if is_void:
                self.plays.leave(trajectory, "rolled_back")
            elif trajectory.last_version > version:
                self.plays.again(trajectory)

    # --- admission and groups ----------------------------------------------------------------

    def _admit(self) -> None:
        """Groups admitted but neither trained nor dropped: at most those of the next 1 + alpha steps."""
        if not self._may_admit or self.publisher.newest is None or self.validator.blocks_training or self.draining:
            return
        self._may_admit = False
        last = min(self.version + self.policy.alpha, self.policy.steps - 1)
        target: Counter[str] = Counter()
        for step in range(self.version, last + 1):
            target.update(self.mix.quota(step))
        if last >= self.version:
            for extra in range(self.policy.redundant_groups):
                target[self.mix.tasks[extra % len(self.mix.tasks)]] += 1
        target.subtract(Counter(group.task for group in self.groups.values()))
        while any(missing > 0 for missing in target.values()):
            for task in self.policy.tasks:
                if target[task] > 0:
                    target[task] -= 1
                    self._open_group(task)

    def _open_group(self, task: str) -> None:
        index = self.group_index[task]
        self.group_index[task] += 1
        group = Group(self.num_groups, task, index)
        self.num_groups += 1
        self.groups[group.id] = group
        for member in range(self.policy.group_size + self.policy.redundancy):
            trajectory = Trajectory(
                id=f"a{self.attempt}.g{group.id}.m{member}",
                task=task,
                purpose="train",
                seed=self.policy.env_seed("train", task, index),
                sample_seed=self.policy.sample_seed("train", task, index, member),
                group=group,
            )
            group.members.append(trajectory)
            self.plays.enter(trajectory)

    def _group_scored(self, group: Group) -> None:
        done = [m for m in group.members if m.state is State.SCORED]
        if len(done) < self.policy.group_size:
            return
        for surplus in [m for m in group.members if m.state is not State.SCORED]:
            self.tally.dropped["surplus"] += 1
            self.plays.leave(surplus, "surplus")
        group.members = done
        group.complete = True
        group.completed_as, self._completed = self._completed, self._completed + 1
        rejected = self.policy.tasks[group.task].group_filter == "same_reward" and len({m.reward for m in done}) == 1
        if rejected:
            self._drop_group(group, "group_filtered")
        elif self._is_stale(group):
            self._drop_group(group, "group_stale")
        else:
            self._dropped_groups[group.task] = 0
            self.batches.add(group)

    def _drop_group(self, group: Group, reason: str) -> None:
        self.tally.dropped[reason] += 1
        for member in group.members:
            self.plays.leave(member, reason)
        del self.groups[group.id]
        self._may_admit = True
        if group in self.batches.buffer:
            self.batches.buffer.remove(group)
        if reason in ("group_filtered", "group_failed", "group_stale"):
            self._dropped_groups[group.task] += 1
            self._quarantine_if(group.task, self._dropped_groups)

    def _quarantine_if(self, task: str, failures: Counter[str]) -> None:
        if failures[task] < self.policy.quarantine_after or self.tally.tasks[task].quarantined:
            return
        self.tally.tasks[task].quarantined = True
        self.mix.remove(task, self.batches.step, self.batches.taken_by_task())
        for group in [g for g in self.groups.values() if g.task == task and g not in self.batches.taken]:
            self._drop_group(group, "quarantined")
        if not self.mix.tasks:
            self._stop("failed", f"all tasks are quarantined, the last one is {task}: see `dropped` in the status")

    # --- trajectories ------------------------------------------------------------------------

    def _on_reset(self, trajectory: Trajectory) -> None:
        self._reset_failures[trajectory.task] = 0

    def _on_turn(self, trajectory: Trajectory) -> bool:
        group = trajectory.group
        if group is not None and self.policy.abort_stale and self._is_stale(group):
            self._drop_group(group, "group_stale")
            return False
        return True

    def _on_scored(self, trajectory: Trajectory) -> None:
        if trajectory.group is None:
            self._validated(trajectory)
            return
        tally = self.tally.tasks[trajectory.task]
        tally.trajectories += 1
        tally.successes += trajectory.success
        tally.reward_sum += trajectory.reward
        self._group_scored(trajectory.group)

    def _on_failed(self, trajectory: Trajectory, status: str) -> None:
        """A failed trajectory is data: count it, then play it again after a pause, within limits."""
        self.tally.dropped[status] += 1
        trajectory.failures += 1
        if status.startswith("reset"):
            self._reset_failures[trajectory.task] += 1
            self._quarantine_if(trajectory.task, self._reset_failures)
        if trajectory.state is State.GONE:
            return
        group, limit = trajectory.group, self.policy.quarantine_after
        if group is None and trajectory.failures > limit:
            self._validated(trajectory)
            return
        if group is not None:
            group.failures += 1
            if group.failures > limit * len(group.members):
                self._drop_group(group, "group_failed")
                return
        self.plays.again(trajectory, self.plays.backoff_s(trajectory.failures))

    def _oldest_incomplete(self) -> int:
        return min((g.id for g in self.groups.values() if not g.complete), default=self.num_groups)

    # --- staleness ---------------------------------------------------------------------------

    def _is_stale(self, group: Group) -> bool:
        """Too old for every step that is still to come."""
        version = group.version
        return version is not None and version < self.batches.next_step - self.policy.alpha

    def _sweep_stale(self) -> None:
        for group in list(self.groups.values()):
            waits = group in self.batches.buffer
            if (waits or self.policy.abort_stale) and group not in self.batches.taken and self._is_stale(group):
                self._drop_group(group, "group_stale")

    def _may_serve(self, engine: Worker, trajectory: Trajectory) -> bool:
        """An engine more than alpha behind gets no requests, but where it installs only when idle it must finish first."""
        installed = engine.installed
        if installed is None or installed.attempt != self.attempt or engine.installing is not None:
            return False
        if not self.policy.install_idle:
            return installed.version >= self.version - self.policy.alpha
        has_begun_here = trajectory.engine == engine.name
        return has_begun_here or installed == self.publisher.newest == WeightsId(self.attempt, self.version)

    def _may_install(self, engine: Worker) -> bool:
        foreign = engine.installed is None or engine.installed.attempt != self.attempt
        return foreign or not self.policy.install_idle or engine.active == 0

    # --- training ----------------------------------------------------------------------------

    def _batch_wanted(self, event: ev.BatchWanted) -> None:
        trainer = self.publisher.trainer
        if trainer is None or event.version != self.version or self.version >= self.policy.steps:
            return
        if self.batches.trainer:  # it forgot what it was given: start the batch over
            self.batches.abandon()
        self.batches.open(self.version, trainer.name)
        self._sweep_stale()

    def _committed(self, event: ev.Committed) -> None:
        if event.version != self.version + 1 or not self.batches.is_closed:
            return
        self.tally.wait_s += event.wait_s
        self.tally.train_s += event.train_s
        trained = self.batches.commit()
        self._emit(ev.RecordStep(event.version, self.attempt, tuple(trained)))
        for group in trained:
            self._trained(group)
        self.version = event.version
        self._may_admit = True
        self.mix.forget_before(self.version)
        self._sweep_stale()
        every = self.policy.checkpoint_every
        if self.draining or (every and self.version % every == 0):
            self._save()

    def _trained(self, group: Group) -> None:
        self.tally.tasks[group.task].groups += 1
        for member in group.members:
            self.tally.staleness[self.version - member.first_version] += 1
            self.plays.forget(member)
        del self.groups[group.id]

    def _published(self, event: ev.Published) -> None:
        if event.weights.attempt == self.attempt:
            self.publisher.published(event.weights)

    # --- weights -----------------------------------------------------------------------------

    def _held(self, event: ev.Held) -> None:
        if event.relay in self.workers and event.weights.attempt == self.attempt:
            self.publisher.held(self.workers[event.relay], event.weights)

    def _transfer_ready(self, event: ev.TransferReady) -> None:
        self.publisher.ready(event.epoch, event.host, event.port)

    def _installed(self, event: ev.Installed) -> None:
        if event.engine in self.workers:
            self.tally.install_s += event.seconds
            self.tally.exposed_s += event.exposed_s
            self.tally.install_bytes += event.num_bytes
            self.publisher.installed(self.workers[event.engine], event.weights)

    def _install_failed(self, event: ev.InstallFailed) -> None:
        if event.engine in self.workers:
            self.publisher.install_failed(self.workers[event.engine])

    # --- validation --------------------------------------------------------------------------

    def _validate_if_due(self) -> None:
        newest = self.publisher.newest
        ready = newest == WeightsId(self.attempt, self.version) and not self.draining
        if ready and self.validator.is_due(self.version):
            for trajectory in self.validator.begin(self.version, list(self.mix.tasks)):
                self.plays.enter(trajectory)

    def _validated(self, trajectory: Trajectory) -> None:
        done = self.validator.add(trajectory)
        trajectory.state = State.GONE
        self.plays.forget(trajectory)
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
        if event.good:
            self.saved_version = event.version
        elif event.version == self.version:
            self._stop("failed", f"the checkpoint of version {event.version} could not be written: see the logs")

    def _drain_wanted(self, event: ev.DrainWanted) -> None:
        self.draining = event.reason
        if self.publisher.trainer is None:
            self._stop("drained", event.reason)
        elif self.saved_version != self.version:
            self._save()

    def _finish_if_done(self) -> None:
        if self.stopped or self.saving is not None or self.publisher.trainer is None:
            return
        if self.draining:
            if self.saved_version == self.version:
                self._stop("drained", self.draining)
            return
        if self.version < self.policy.steps or self.validator.running or self._final_validation_missing():
            return
        if self.saved_version == self.version:
            self._stop("finished", f"all {self.policy.steps} steps are done")
        else:
            self._save()

    def _final_validation_missing(self) -> bool:
        return self.policy.validation_plays > 0 and not self.validator.has(self.policy.steps)

    def _stop(self, state: str, reason: str) -> None:
        self.stopped = state
        self._emit(ev.StopRun(state, reason))

    def _tick(self, event: ev.Tick) -> None:
        self.plays.now = event.now
        self.plays.expire_scores()
        self.publisher.advance()

    # --- snapshot ----------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """What a checkpoint keeps: complete groups and counters. Running trajectories are issued again."""
        return snapshot_of(self)

    def _restore(self, saved: dict[str, Any]) -> None:
        self.version = self.saved_version = self.batches.step = saved["version"]
        self.num_groups = saved["num_groups"]
        self.group_index.update(saved["group_index"])
        self.mix.restore(saved["mix"])
        self.tally.dropped.update(saved["dropped"])
        self.tally.staleness.update({int(k): v for k, v in saved["staleness"].items()})
        self.validator.restore(saved["validations"])
        for group in groups_of(saved["groups"], self.policy.group_size):
            if group.task in self.mix.tasks:
                self.groups[group.id] = group
                self.plays.all.update({member.id: member for member in group.members})
                self.batches.add(group)

    def num_playing(self) -> int:
        return sum(t.state in PLAYING for t in self.plays.all.values())
