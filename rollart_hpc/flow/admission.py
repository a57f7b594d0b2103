"""Opens, completes and drops groups. Owns the groups in flight. Every dropped group has a counted reason.

Groups admitted but neither trained nor dropped are at most those of the next 1 + alpha steps: that
makes alpha = 0 exactly synchronous and keeps engines from over-producing.

With `barrier`, batches are generated one after another: groups of the next batch are opened only when every group of
the last one is complete and the trainer has committed the step before that.
"""

from __future__ import annotations

import heapq
from collections import Counter

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.ages import Ages
from rollart_hpc.flow.batches import Batches
from rollart_hpc.flow.mix import TaskMix
from rollart_hpc.flow.rules import FlowRules
from rollart_hpc.flow.state import Group, State, Tally, Trajectory
from rollart_hpc.flow.trajectories import Trajectories
from rollart_hpc.vocabulary import DropReason, EventKind

BURST = 32  # maximum trajectories opened per event, so that a new step does not delay turns
LONGEST_PAUSE_S = 3600.0  # of a quarantined task


class Admission:
    def __init__(
        self, rules: FlowRules, tally: Tally, mix: TaskMix, trajectories: Trajectories, batches: Batches
    ) -> None:
        self.rules, self.tally, self.mix, self.trajectories, self.batches = rules, tally, mix, trajectories, batches
        self.groups: dict[int, Group] = {}
        self.ages = Ages()
        self.num_groups = 0
        self.next_index: Counter[str] = Counter()  # next group index of each task; it decides the seeds
        self.is_due = True  # something changed since the last call
        self.is_ending = False  # the run ends: no task is quarantined for what fails now
        self.opened_at = 0  # with `barrier`: version of the trainer when the newest batch was opened
        self._opened = 0  # with `barrier`: step of that batch
        self._taken_back: set[tuple[str, int]] = set()  # (task, index) of groups that a checkpoint kept
        self._completed = 0
        self._num_alive: Counter[str] = Counter()  # groups of each task
        self._incomplete: list[int] = []  # a heap of group ids, some of them complete or gone by now
        self._probes: dict[str, float] = {}  # quarantined tasks: when they are tried again
        self._pauses: dict[str, float] = {}  # tasks that were quarantined and have trained nothing since: their pause
        self._dropped_groups: Counter[str] = Counter()  # in a row

    def admit(self, version: int, attempt: int) -> None:
        """Groups admitted but neither trained nor dropped: at most those of the next 1 + alpha steps."""
        if not self.is_due:
            return
        self.is_due = False
        missing = self._missing(version)
        if self.rules.barrier:
            if self._may_open_batch(version, missing):
                missing = self._missing(version)
            version = self.opened_at
        for _ in range(max(1, BURST // (self.rules.group_size + self.rules.redundancy))):
            task = max(self.rules.tasks, key=missing.__getitem__)
            if missing[task] <= 0:
                return
            missing[task] -= 1
            self._open(task, version, attempt)
        self.is_due = True

    def _missing(self, version: int) -> Counter[str]:
        missing = self._wanted(version)
        missing.subtract(self._num_alive)
        return missing

    def _may_open_batch(self, version: int, missing: Counter[str]) -> bool:
        """Pass the barrier, if the newest batch is whole. True if another batch is open now."""
        is_behind = self._opened < version
        is_next = self.is_whole and self._opened < version + self.rules.alpha and max(missing.values(), default=0) <= 0
        if is_behind or is_next:
            self._opened = version if is_behind else self._opened + 1
            self.opened_at = version
        return is_behind or is_next

    @property
    def is_whole(self) -> bool:
        """True if every group is complete."""
        return self.oldest_incomplete() == self.num_groups

    def _wanted(self, version: int) -> Counter[str]:
        """Groups of each task in the batches of the next 1 + alpha steps, or those open, and the redundant ones."""
        last = self._opened if self.rules.barrier else version + self.rules.alpha
        last = min(last, self.rules.steps - 1)
        wanted: Counter[str] = Counter()
        for step in range(version, last + 1):
            wanted.update(self.mix.quota(step))
        is_in_time = version >= self.batches.next_step - self.rules.alpha  # else they would be stale from the start
        if last >= version and self.mix.tasks and is_in_time:
            for extra in range(self.rules.redundant_groups):
                wanted[self.mix.tasks[extra % len(self.mix.tasks)]] += 1
        return wanted

    def trim(self, version: int, reason: DropReason) -> None:
        """After a rollback the mix of the next steps differs. Drop the groups it has no place for."""
        if self.rules.barrier:
            self._reopen(version)
        room = self._wanted(version)
        for group in sorted(self.groups.values(), key=lambda g: g.id):
            group.admitted_version = min(group.admitted_version, version)
            room[group.task] -= 1
            if room[group.task] < 0:
                self.drop(group, reason)

    def _reopen(self, version: int) -> None:
        """After a rollback or a restore: the open batches are those that the groups fill."""
        self._opened = version
        self.opened_at = min(self.opened_at, version)
        while self._opened < version + self.rules.alpha and min(self._missing(version).values(), default=0) < 0:
            self._opened += 1

    def _open(self, task: str, version: int, attempt: int) -> None:
        while (task, self.next_index[task]) in self._taken_back:
            self.next_index[task] += 1
        index = self.next_index[task]
        self.next_index[task] += 1
        group = Group(self.num_groups, task, index, version)
        self.num_groups += 1
        self._keep(group)
        heapq.heappush(self._incomplete, group.id)
        for member in range(self.rules.group_size + self.rules.redundancy):
            trajectory = Trajectory(
                id=f"a{attempt}.g{group.id}.m{member}",
                task=task,
                purpose="train",
                seed=self.rules.env_seed("train", task, index),
                sample_seed=self.rules.sample_seed("train", task, index, member),
                group=group,
            )
            group.members.append(trajectory)
            self.trajectories.enter(trajectory)

    def _keep(self, group: Group) -> None:
        self.groups[group.id] = group
        self._num_alive[group.task] += 1

    def forget(self, group: Group) -> None:
        """Remove a group that was trained or dropped."""
        del self.groups[group.id]
        self._num_alive[group.task] -= 1
        self.ages.remove(group)
        self.is_due = True

    def take_back(self, group: Group) -> None:
        """Restore a complete group from a checkpoint."""
        self._keep(group)
        self._taken_back.add((group.task, group.index))
        for member in group.members:
            self.trajectories.take_back(member)
        self.ages.note(group)
        self.batches.add(group)

    def scored(self, group: Group) -> None:
        done = [m for m in group.members if m.state is State.SCORED]
        if len(done) < self.rules.group_size:
            return
        for surplus in [m for m in group.members if m.state is not State.SCORED]:
            self.tally.dropped[DropReason.SURPLUS] += 1
            self.trajectories.leave(surplus, DropReason.SURPLUS)
        group.members = done
        group.complete = True
        self.is_due = self.is_due or self.rules.barrier
        self.ages.note(group)
        group.completed_as, self._completed = self._completed, self._completed + 1
        if self._is_filtered(group):
            self.drop(group, DropReason.GROUP_FILTERED)
        elif self.is_stale(group):
            self.drop(group, DropReason.GROUP_STALE)
        else:
            self._dropped_groups[group.task] = 0
            self._pauses.pop(group.task, None)
            self.batches.add(group)

    def _is_filtered(self, group: Group) -> bool:
        """True if its plays teach nothing and the task may still be tried again."""
        task = self.rules.tasks[group.task]
        if 0 < task.filter_tries <= self._dropped_groups[group.task]:
            return False
        if task.group_filter == "same_success":
            return len({member.success for member in group.members}) == 1
        rewards = [member.reward for member in group.members]
        return task.group_filter == "same_reward" and max(rewards) - min(rewards) <= task.filter_tolerance

    def drop(self, group: Group, reason: DropReason, *, is_counted: bool = True) -> None:
        self.tally.dropped[reason] += len(group.members)
        for member in group.members:
            self.trajectories.leave(member, reason)
        self.forget(group)
        self.batches.discard(group)
        was_too_slow = reason is DropReason.GROUP_STALE and not group.complete
        if is_counted and (was_too_slow or reason.blames_task):
            self._dropped_groups[group.task] += 1
            error = f": {self.tally.tasks[group.task].last_error}" if reason is DropReason.GROUP_FAILED else ""
            count = self._dropped_groups[group.task]
            if count >= self.rules.quarantine_after:
                self.quarantine(group.task, f"{count} groups in a row were dropped, the last as {reason}{error}")

    def quarantine(self, task: str, reason: str) -> None:
        """Go on without this task, and try it again after a pause. It doubles until a group is complete."""
        tally = self.tally.tasks[task]
        if tally.quarantined or self.is_ending:
            return
        tally.quarantined = True
        tally.quarantine_reason = reason
        self._pauses[task] = min(2 * self._pauses.get(task, self.rules.probe_s / 2), LONGEST_PAUSE_S)
        self._probes[task] = self.trajectories.now + self._pauses[task]
        self.trajectories.emit(ev.Warn(EventKind.TASK_QUARANTINED, task, tally.quarantine_reason))
        self.mix.remove(task, self.batches.step, self.batches.taken_by_task())
        self.batches.look_again()
        for group in [g for g in self.groups.values() if g.task == task and g.id not in self.batches.taken]:
            self.drop(group, DropReason.QUARANTINED)

    def tick(self, now: float) -> None:
        if self._probes:
            for task in [task for task, due_s in self._probes.items() if now >= due_s]:
                self._put_back(task)

    def expect(self, task: str) -> None:
        """The checkpoint says that this task is quarantined: try it again at once."""
        self._probes[task] = 0.0

    def _put_back(self, task: str) -> None:
        del self._probes[task]
        tally = self.tally.tasks[task]
        self.trajectories.emit(ev.Warn(EventKind.TASK_RETURNED, task, f"it was quarantined: {tally.quarantine_reason}"))
        tally.quarantined, tally.quarantine_reason = False, ""
        self._dropped_groups[task] = 0
        self.mix.put_back(task, self.rules.tasks[task].weight)
        self.is_due = True

    # --- age ---------------------------------------------------------------------------------

    def is_stale(self, group: Group) -> bool:
        """True if the group is too old for every step that can still train it."""
        version = group.version
        return version is not None and version < self.batches.next_step - self.rules.alpha

    def sweep_stale(self) -> None:
        counted: set[str] = set()
        for group in self.ages.older_than(self.batches.next_step - self.rules.alpha):
            # Dropping one group may quarantine its task, which drops the others.
            is_due = group.id in self.groups and self.is_stale(group)
            if is_due and (self.rules.abort_stale or group.id in self.batches.buffer):
                # A step that leaves many slow groups behind counts once per task, not once per group.
                self.drop(group, DropReason.GROUP_STALE, is_counted=group.task not in counted)
                counted.add(group.task)

    def oldest_start(self, group: Group, version: int) -> int:
        """The oldest version on which a trajectory of this group may start while the trainer is at `version`.

        An older start leaves fewer steps to train in. It is allowed while those steps have a free place: the size of
        their batches, minus the groups that are at least as old.
        """
        oldest = self.batches.next_step - self.rules.alpha
        if self.rules.in_order or self.rules.barrier:
            return max(group.admitted_version, oldest)
        if group.indexed_at is not None:
            return max(min(group.indexed_at, version), oldest)
        start = version
        while start > oldest and self._has_place(group.task, start - 1):
            start -= 1
        return start

    def _has_place(self, task: str, version: int) -> bool:
        """True if a batch that can still train this version has a free place."""
        first, last = self.batches.next_step, min(version + self.rules.alpha, self.rules.steps - 1)
        places = sum(self.mix.quota(step).get(task, 0) for step in range(first, last + 1))
        if first == self.batches.step:
            places -= self.batches.num_taken(task)
        return self.ages.num_up_to(version, task) < places

    def take(self, groups: list[Group]) -> None:
        """A batch took these groups, so their age no longer matters."""
        for group in groups:
            self.ages.remove(group)

    def give_back(self, groups: list[Group]) -> None:
        """The batch that held these groups was abandoned."""
        for group in groups:
            self.ages.note(group)

    def oldest_incomplete(self) -> int:
        heap = self._incomplete
        while heap and (heap[0] not in self.groups or self.groups[heap[0]].complete):
            heapq.heappop(heap)
        return heap[0] if heap else self.num_groups
