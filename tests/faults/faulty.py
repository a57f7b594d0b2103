"""The simulated world with more faults than deaths: hangs, partitions, duplicates, failed saves, nonsense, jumps.

Owns what goes wrong, all drawn from one seed, and the invariants that go beyond those of `tests/flow/test_core_faults`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rollart_hpc.flow import events as ev
from rollart_hpc.simulate.world import TICK_S, Member, World
from rollart_hpc.vocabulary import DropReason, EventKind
from tests.flow.test_core_faults import MODES, check_credits, check_ledger, check_no_orphans, make_world

UNTIL_S = 4000.0  # virtual; progress within this bound, whatever happens
SILENCE_S = 20.0
LATE = (ev.TurnWanted, ev.Ended, ev.Scored, ev.ScoreFailed, ev.Held, ev.Installed, ev.Published, ev.Generated)
Check = Callable[[World, Any], None]
SHARE = 2.0  # groups by which a task's part of the ledger may differ from its share
BROKEN_STEP = 1  # the turn at which a broken task raises


class FaultyWorld(World):
    """A world whose connections, clock and disk fail too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.faults: Counter[str] = Counter()
        self.cut: dict[str, str] = {}  # worker -> the direction that does not work: "to" or "from"
        self.bad_nodes: set[str] = set()  # env workers at which no reset works
        self.broken_task = ""  # its second step raises, everywhere
        self.broken_plays = self.most_broken_plays = 0  # that ended so, until the task was quarantined
        self.duplicates = self.nonsense = self.bad_saves = 0.0  # how often
        self.failed_saves = 0  # in a row
        self.jumped_s = 0.0
        self.told: list[tuple[EventKind, str]] = []  # what the user was told, and about whom
        self.dropped_out: set[str] = set()  # tasks whose groups were all filtered or too slow, which is no fault
        self.tasks_of: dict[int, list[str]] = {}  # version -> tasks of its groups

    def _tick(self) -> None:
        self.feed(ev.Tick(self.now + self.jumped_s))
        self.after(TICK_S, self._tick)

    def jump(self, seconds: float) -> None:
        """This process, or its machine, did not run for a while."""
        self.faults["clock jump"] += 1
        self.jumped_s += seconds

    def start(self, name: str) -> None:
        if not self.by_name[name].is_alive:
            self.cut.pop(name, None)  # a new process has a new connection
        super().start(name)

    def partition(self, name: str, direction: str, seconds: float) -> None:
        """Only one direction works. When it ends, the connection is a new one: what was on its way is lost."""
        member = self.by_name[name]
        if member.role == "trainer" or not member.is_alive or name in self.cut:
            return
        self.faults["partition"] += 1
        self.cut[name] = direction
        life = member.life
        if direction == "from" and seconds > SILENCE_S:
            self.after(SILENCE_S, lambda: self._lose_silent(name, life))
        self.after(seconds, lambda: self._heal(name, life))

    def _lose_silent(self, name: str, life: int) -> None:
        member = self.by_name[name]
        if member.is_alive and member.life == life:
            member.is_alive = False
            self.feed(ev.Lost(name, "silent"))

    def _heal(self, name: str, life: int) -> None:
        self.cut.pop(name, None)
        member = self.by_name[name]
        if member.life == life and not self.ended:
            member.is_alive = False
            self.start(name)

    def _carry_out(self, command: ev.Command) -> None:
        receiver = next(
            (getattr(command, k) for k in ("worker", "engine", "relay", "target") if hasattr(command, k)), ""
        )
        if self.cut.get(receiver) == "to" and not isinstance(command, ev.Replace):
            self._lost_command(command)
            return
        super()._carry_out(command)

    def _lost_command(self, command: ev.Command) -> None:
        if isinstance(command, ev.Play):
            self._turns_left[command.trajectory, command.issue] = 1
        elif isinstance(command, ev.Deliver):
            self._turns_left[command.trajectory, self.core.trajectories.all[command.trajectory].issue] -= 1

    def _answer(self, member: Member, delay_s: float, event: ev.Event) -> None:
        if self.random.random() < self.duplicates and isinstance(event, LATE):
            self.faults["late duplicate"] += 1
            super()._answer(member, delay_s + self.random.expovariate(0.5), event)
        super()._answer(member, delay_s, self._spoilt(member, event))

    def _spoilt(self, member: Member, event: ev.Event) -> ev.Event:
        """As the controller makes it of a message that it can't use, of a bad node or of a broken task."""
        first = isinstance(event, ev.TurnWanted) and event.turn == 0
        if member.name in self.bad_nodes and first:
            return ev.Ended(event.trajectory, event.issue, DropReason.RESET_FAILED)  # type: ignore[union-attr]
        if isinstance(event, ev.TurnWanted | ev.Ended) and self._is_broken(event):
            self.broken_plays += 1
            self.most_broken_plays = max(self.most_broken_plays, self.broken_plays)
            return ev.Ended(event.trajectory, event.issue, DropReason.ENV_ERROR, BROKEN_STEP)
        if self.random.random() < self.nonsense and isinstance(event, ev.TurnWanted | ev.Ended | ev.Scored):
            self.faults["bad payload"] += 1
            if isinstance(event, ev.Scored):
                return ev.ScoreFailed(event.trajectory, event.issue, member.name, "not finite")
            return ev.Ended(event.trajectory, event.issue, DropReason.MALFORMED)
        return event

    def _is_broken(self, event: ev.TurnWanted | ev.Ended) -> bool:
        found = self.core.trajectories.all.get(event.trajectory)
        is_later = isinstance(event, ev.Ended) or event.turn >= BROKEN_STEP
        return bool(self.broken_task) and found is not None and found.task == self.broken_task and is_later

    def feed(self, event: ev.Event) -> None:
        sender = self._sender(event)
        if sender and self.cut.get(sender) == "from":
            return
        if isinstance(event, ev.Saved) and not event.error:
            event = self._saved(event)
        super().feed(event)

    def _saved(self, event: ev.Saved) -> ev.Saved:
        """The run ends after `save_tries` failures in a row, so there are fewer."""
        if self.random.random() >= self.bad_saves or self.failed_saves > self.rules.save_tries - 3:
            self.failed_saves = 0
            return event
        self.faults["save error"] += 1
        self.failed_saves += 1
        self.checkpoint = self._before_save
        return ev.Saved(event.version, "no space left on device")

    def _sender(self, event: ev.Event) -> str:
        """Who sent it, as far as the core knows."""
        if isinstance(event, ev.TurnWanted | ev.Ended):
            found = self.core.trajectories.all.get(event.trajectory)
            return found.env if found is not None else ""
        if isinstance(event, ev.Generated | ev.PrefixMissing | ev.Prefilled):
            asked = self.core.trajectories.requests.get(event.request)
            return asked.server if asked is not None else ""
        return getattr(event, "engine", "") or getattr(event, "relay", "")

    def _do_SaveCheckpoint(self, c: ev.SaveCheckpoint) -> None:
        self._before_save: dict[str, Any] | None = self.checkpoint
        super()._do_SaveCheckpoint(c)

    def kill_controller(self) -> None:
        super().kill_controller()
        self.broken_plays = 0  # it counts anew

    def _do_Warn(self, c: ev.Warn) -> None:
        if c.what is EventKind.TASK_QUARANTINED and c.task == self.broken_task:
            self.broken_plays = 0
        if "failed" in c.detail:
            self.told.append((c.what, c.task))
        elif c.what is EventKind.TASK_QUARANTINED:
            self.dropped_out.add(c.task)

    def _do_RecordStep(self, c: ev.RecordStep) -> None:
        super()._do_RecordStep(c)
        self.tasks_of[c.version] = [group.task for group in c.groups]


def check_memory(world: World, event: object) -> None:
    """Nothing is kept beyond what is in progress."""
    core, rules = world.core, world.rules
    groups = 2 * ((1 + rules.alpha) * rules.groups_per_step + rules.redundant_groups)
    most = groups * (rules.group_size + rules.redundancy) + rules.validation_plays * len(rules.tasks)
    assert len(core.trajectories.all) <= most, f"{len(core.trajectories.all)} trajectories, at most {most} are admitted"
    assert len(core.trajectories.requests) <= len(core.trajectories.all)
    assert len(core.streaks.counts) <= len(rules.tasks) * len(world.members)


def check_bound(world: World, event: object) -> None:
    """As `check_admission`. A task that leaves or comes back changes the mix: groups of others may be too many."""
    rules = world.rules
    bound = (1 + rules.alpha) * rules.groups_per_step + rules.redundant_groups
    bound *= 1 + (rules.quarantine_after < 1000)
    assert len(world.core.groups) <= bound, f"{len(world.core.groups)} groups admitted, at most {bound} are wanted"


def check_mix(world: FaultyWorld) -> None:
    """No task starves, and each has its share of the ledger."""
    quarantined = {about for what, about in world.told if what is EventKind.TASK_QUARANTINED}
    assert quarantined <= {world.broken_task}, f"{quarantined} quarantined without a fault of its own"
    if world.broken_task or world.dropped_out:
        return
    total = sum(task.weight for task in world.rules.tasks.values())
    counts = Counter(task for tasks in world.tasks_of.values() for task in tasks)
    trained = sum(counts.values())
    for name, task in world.rules.tasks.items():
        share = trained * task.weight / total
        assert abs(counts[name] - share) <= SHARE, f"{counts[name]} groups of {name}, its share is {share:.1f}"


def is_wanted(task: str, world: World) -> bool:
    """Whatever is rolled back and dealt again: the run can't end without it."""
    weights = {name: each.weight for name, each in world.rules.tasks.items()}
    return world.rules.steps * world.rules.groups_per_step * weights[task] / sum(weights.values()) >= 2 * SHARE


def faulty_world(seed: int) -> FaultyWorld:
    """Everything follows from the seed."""
    rng = random.Random(seed)
    mode, direct = rng.choice(sorted(MODES)), rng.random() < 0.5
    failure_rate, plays = rng.choice([0.0, 0.0, 0.02, 0.1]), rng.choice([0, 3])
    plain = make_world(mode, seed, failure_rate, direct, plays)
    kind = rng.choice(["", "", "", "bad node", "broken task"]) if not failure_rate else ""
    changes = {"quarantine_after": 8, "probe_s": 30.0} if kind else {}
    rules = replace(plain.rules, num_envs=sum(m.role == "env" for m in plain.members), **changes)
    world = FaultyWorld(rules, plain.members, seed, plain.durations)
    world.checks.append(_sometimes((check_bound, check_no_orphans, check_memory, check_credits), rng.randint(2, 16)))
    for member in world.members:
        world.after(rng.uniform(0, 1), lambda name=member.name: world.start(name))
    _special(world, kind, rng)
    _schedule(world, rng)
    return world


def _sometimes(checks: tuple[Check, ...], every: int) -> Check:
    """They look at everything there is, and most of it has not changed since the event before."""
    count = 0

    def checked(world: World, event: object) -> None:
        nonlocal count
        count += 1
        if count % every == 0:
            for check in checks:
                check(world, event)

    return checked


def _special(world: FaultyWorld, kind: str, rng: random.Random) -> None:
    envs = [m.name for m in world.members if m.role == "env"]
    if kind == "bad node" and len(envs) > 1:
        world.bad_nodes.add(envs[0])
        world.faults[kind] += 1
    elif kind == "broken task":
        world.broken_task = rng.choice(["a", "b", "c"])
        world.faults[kind] += 1


def _schedule(world: FaultyWorld, rng: random.Random) -> None:
    names = [m.name for m in world.members]
    others = [m.name for m in world.members if m.role != "trainer"]
    world.duplicates, world.nonsense = rng.choice([0.0, 0.0, 0.05]), rng.choice([0.0, 0.0, 0.03])
    world.bad_saves = rng.choice([0.0, 0.3])
    if world.bad_nodes or world.broken_task:
        world.nonsense = 0.0
        others = [name for name in others if not name.startswith("env")]
        names = [name for name in names if not name.startswith("env")]

    def plan(most: int, first_s: float, last_s: float, act: Any) -> None:
        for _ in range(rng.randint(0, most)):
            world.after(rng.uniform(first_s, last_s), act)

    def kill() -> None:
        world.faults["kill"] += 1
        world.kill(world.random.choice(names), world.random.uniform(0.01, 3.0))

    def reconnect() -> None:
        world.faults["reconnect"] += 1
        world.reconnect(world.random.choice(names))

    def hang() -> None:
        world.faults["hang"] += 1
        world.hang(world.random.choice(others))

    def restart() -> None:
        world.faults["controller killed"] += 1
        world.cut.clear()
        world.kill_controller()

    plan(4, 0.0, 12.0, kill)
    plan(2, 0.5, 10.0, reconnect)
    plan(1, 0.5, 10.0, restart)
    plan(1 if rng.random() < 0.3 else 0, 0.5, 6.0, hang)
    plan(2, 0.5, 8.0, lambda: world.partition(world.random.choice(others), world.random.choice(["to", "from"]),
                                              world.random.choice([0.5, 5.0, 40.0])))  # fmt: skip
    plan(1, 0.5, 8.0, lambda: world.jump(world.random.choice([6.0, 60.0, 1000.0])))


def play(seed: int) -> FaultyWorld:
    """One run. Raises AssertionError if an invariant is broken."""
    world = faulty_world(seed)
    ended = world.run(UNTIL_S)
    assert ended == "finished", f"{ended or 'no progress'} at version {world.core.version} after {world.now:.0f} s"
    check_ledger(world)
    assert world.core.tally.stray_requests == 0
    assert max(world.core.tally.staleness, default=0) <= world.rules.alpha
    check_mix(world)
    envs = [m for m in world.members if m.role == "env"]
    most = len(envs) * world.rules.quarantine_after + sum(m.capacity for m in envs)
    assert world.most_broken_plays <= most, f"{world.most_broken_plays} plays failed before quarantine, limit {most}"
    if world.broken_task and is_wanted(world.broken_task, world):
        about = (EventKind.TASK_QUARANTINED, world.broken_task)
        assert about in world.told, "a task that always raises was not quarantined"
    return world
