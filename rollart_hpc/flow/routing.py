"""Which engine serves a turn. Owns the turns that wait for one, and what engines hold.

A task wants some pools, or any. While an engine of those lives they serve the task; otherwise every pool does, counted
as a fallback, until one of them is back. Among all engines of these pools a trajectory begins on the emptiest (`pools`)
and stays with it, for its KV lies there. A turn of a split task is served twice, prefilled in some pools and decoded in
others, while both sides have a living engine, and the trajectory stays with an engine on either side; otherwise one
engine serves it as a whole, counted too.

Turns of a trajectory that has an engine wait in that engine's own queue, all others in the queue of the pools they
want. An engine's own turns go first: what has begun should end.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from enum import Enum, auto

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.affinity import Affinity
from rollart_hpc.flow.pools import Choice, Pool, fits, fits_now
from rollart_hpc.flow.rules import FlowRules
from rollart_hpc.flow.state import Tally, Trajectory, Worker

LENGTHS_REMEMBERED = 64  # recent trajectories that determine the expected length of a task

# Turns of one kind can be served by the same engines, so checking the first is enough.
Kind = tuple[str, bool, bool, bool]  # task, is training, has begun, KV is ready
Queue = deque[tuple[int, Trajectory]]
Pools = tuple[str, ...]  # names of the pools that are wanted; () = any


class Stage(Enum):
    """What an engine is asked for."""

    WHOLE = auto()
    PREFILL = auto()
    DECODE = auto()


class Router:
    """`usable`: the version an engine can generate with; `needs`: the oldest version that may serve a turn there."""

    def __init__(
        self,
        rules: FlowRules,
        tally: Tally,
        emit: Callable[[ev.Command], None],
        usable: Callable[[Worker], int | None],
        needs: Callable[[Trajectory, bool], int],
        on_idle: Callable[[Worker], None],
    ) -> None:
        self.rules = rules
        self.tally = tally
        self.affinity = Affinity(rules)
        self.engines: dict[str, Worker] = {}
        self.pools: dict[str, Pool] = {}
        self.is_patient = False  # engines that still install keep their share
        self._emit = emit
        self._usable = usable
        self._needs = needs
        self._on_idle = on_idle
        self._awaited = set(rules.awaited)
        self._split_pools = {Stage.PREFILL: rules.prefill_pools, Stage.DECODE: rules.decode_pools}
        self._installs_idle = rules.install_idle or rules.direct
        self._queues: dict[Pools, dict[Kind, Queue]] = {}
        self._queued_in: dict[str, Pools] = {}  # queue of each trajectory that waits for any engine
        self._num_waiting: Counter[Pools] = Counter()  # length of each queue
        self._ready: dict[str, None] = {}  # engines whose own queue must be checked
        self._is_due = False  # the queues of the pools must be checked
        self._last_place = 0
        self._expected: dict[str, float] = dict.fromkeys(rules.tasks, 0.0)  # tokens of a trajectory at its end

    # --- pools -------------------------------------------------------------------------------

    def join(self, engine: Worker) -> None:
        self.engines[engine.name] = engine
        is_first = not self._has_engine(engine.pool)
        self.pools.setdefault(engine.pool, Pool(engine.pool)).engines[engine.name] = engine
        self._awaited.discard(engine.pool)
        self.changed(engine)
        if is_first:
            self._queue_anew()

    def leave(self, engine: Worker) -> None:
        """The engine was lost. Its waiting turns move to other queues."""
        del self.engines[engine.name]
        self.pools[engine.pool].leave(engine)
        self._ready.pop(engine.name, None)
        waiting = [t for place, t in engine.waiting if t.place == place]
        engine.waiting.clear()
        for trajectory in waiting:
            self.enqueue(trajectory)
        if not self._has_engine(engine.pool):
            self._queue_anew()
        self._is_due = True

    def changed(self, engine: Worker) -> None:
        """The weights, credits or trajectories of this engine changed."""
        self._update(engine)
        if engine.waiting:
            self._ready[engine.name] = None
        self._is_due = True

    def _update(self, engine: Worker) -> None:
        self.pools[engine.pool].update(engine, self._usable(engine), self._is_blocked(engine))

    def look_again(self) -> None:
        """The version or the batch changed, so other engines may be new enough now."""
        self._is_due = True
        for engine in self.engines.values():
            if engine.waiting:
                self._ready[engine.name] = None

    def _has_engine(self, pool: str) -> bool:
        return pool in self.pools and bool(self.pools[pool].engines)

    def _is_alive(self, pools: Pools) -> bool:
        """True if one of them is. A pool whose first engine has not joined yet counts as alive: its tasks wait."""
        return any(pool in self._awaited or self._has_engine(pool) for pool in pools)

    def _is_blocked(self, engine: Worker) -> bool:
        return self._installs_idle and engine.installing is not None

    def stage(self, trajectory: Trajectory) -> Stage:
        """What the waiting turn needs next."""
        if not self.rules.tasks[trajectory.task].split or not all(map(self._is_alive, self._split_pools.values())):
            return Stage.WHOLE
        return Stage.DECODE if trajectory.kv else Stage.PREFILL

    def _wanted(self, trajectory: Trajectory, stage: Stage) -> Pools:
        pools = self._split_pools.get(stage) or trajectory.pools
        return self.affinity.pools(trajectory.task) if pools is None else pools

    def _serves(self, pool: str, wanted: Pools) -> bool:
        return not wanted or pool in wanted or not self._is_alive(wanted)

    def turns(self) -> dict[str, int]:
        """Turns that run or wait, by pool. One that any pool may serve counts where engines are; "": there are none."""
        found = {name: sum(e.load + len(e.waiting) for e in pool.engines.values()) for name, pool in self.pools.items()}
        for wanted, count in self._num_waiting.items():
            pools = list(wanted) or [name for name in self.pools if self._has_engine(name)] or [""]
            for name in pools:
                found[name] = found.get(name, 0) + -(-count // len(pools))
        return found

    # --- turns that wait ---------------------------------------------------------------------

    def enqueue(self, trajectory: Trajectory) -> None:
        self._last_place += 1
        trajectory.place = self._last_place
        self._set_aside(trajectory)
        if trajectory.pools is None:
            trajectory.pools = self.affinity.pools(trajectory.task)
        stage = self.stage(trajectory)
        home = self._home(trajectory, stage)
        if home is not None and self._may_stay(home, trajectory, stage):
            home.waiting.append((trajectory.place, trajectory))
            self._ready[home.name] = None
        else:
            self._enqueue_in_pool(trajectory, stage)

    def _enqueue_in_pool(self, trajectory: Trajectory, stage: Stage) -> None:
        """Wait for any engine. The trajectory leaves the engine it had, which may be waiting to become idle."""
        self._let_go(trajectory, stage)
        wanted = self._wanted(trajectory, stage)
        has_begun = trajectory.first_version >= 0
        kind = trajectory.task, trajectory.is_training, has_begun, bool(trajectory.kv)
        queue = self._queues.setdefault(wanted, {}).setdefault(kind, deque())
        queue.append((trajectory.place, trajectory))
        self._queued_in[trajectory.id] = wanted
        self._num_waiting[wanted] += 1
        self._is_due = True

    def withdraw(self, trajectory: Trajectory) -> None:
        """Stop waiting. The queue entry is skipped when it reaches the head."""
        trajectory.place = 0
        wanted = self._queued_in.pop(trajectory.id, None)
        if wanted is not None:
            self._num_waiting[wanted] -= 1

    def _queue_anew(self) -> None:
        """A pool gained its first engine or lost its last. Waiting turns may belong to another queue or stage now."""
        waiting = sorted(
            (entry for kinds in self._queues.values() for queue in kinds.values() for entry in queue),
            key=lambda entry: entry[0],
        )
        self._queues.clear()
        for place, trajectory in waiting:
            if trajectory.place == place:
                self.withdraw(trajectory)
                self.enqueue(trajectory)

    # --- choosing ----------------------------------------------------------------------------

    def assign(self) -> Iterator[tuple[Trajectory, Worker, Stage]]:
        """Pairs of a waiting turn and its engine. The caller must call `spend` before taking the next pair."""
        while self._ready or self._is_due:
            while self._ready:
                engine = self.engines.get(self._ready.popitem()[0])
                if engine is not None:
                    yield from self._own_turns(engine)
            self._is_due = False
            for kinds in list(self._queues.values()):
                yield from self._new_turns(kinds)

    def _own_turns(self, engine: Worker) -> Iterator[tuple[Trajectory, Worker, Stage]]:
        waiting = engine.waiting
        while waiting and engine.room > 0 and not self._is_blocked(engine):
            place, trajectory = waiting[0]
            if trajectory.place != place:
                waiting.popleft()
                continue
            stage = self.stage(trajectory)
            if not self._may_stay(engine, trajectory, stage):
                waiting.popleft()
                self._enqueue_in_pool(trajectory, stage)
                continue
            if self._usable(engine) is None or not fits_now(engine, trajectory):
                return
            waiting.popleft()
            trajectory.place = 0
            yield trajectory, engine, stage

    def _new_turns(self, kinds: dict[Kind, Queue]) -> Iterator[tuple[Trajectory, Worker, Stage]]:
        """Serve the longest waiting turn first. Skip a kind once its first turn finds no engine."""
        stuck: set[Kind] = set()
        while (kind := _longest_waiting(kinds, stuck)) is not None:
            trajectory = kinds[kind][0][1]
            stage = self.stage(trajectory)
            engine = self._choose(trajectory, stage)
            if engine is None:
                stuck.add(kind)
                continue
            kinds[kind].popleft()
            self.withdraw(trajectory)
            yield trajectory, engine, stage

    def _choose(self, trajectory: Trajectory, stage: Stage) -> Worker | None:
        wanted = self._wanted(trajectory, stage)
        pools = [pool for pool in self.pools.values() if self._serves(pool.name, wanted)]
        choice = Choice(pools, self._needs(trajectory, False))
        # KV is reserved until the trajectory ends, except where that could deadlock. In lockstep no trajectory ends
        # before all had their turn. A split trajectory that waits for one side may hold KV of the other.
        holds_kv = not self.rules.lockstep and stage is not Stage.PREFILL

        def has_room(e: Worker) -> bool:
            return fits_now(e, trajectory) and (not holds_kv or fits(e, trajectory))

        shuns = trajectory.shuns
        engine = choice.emptiest(lambda e: e.name != shuns and has_room(e)) if shuns else None
        engine = engine or choice.emptiest(has_room)
        if engine is None or not choice.is_level(engine):
            return None
        if self.is_patient and not choice.has_share_left(engine, self._num_waiting_for(pools, wanted)):
            return None
        return engine

    @property
    def num_waiting(self) -> int:
        """Turns that wait for any engine of their pool."""
        return len(self._queued_in)

    def _num_waiting_for(self, pools: list[Pool], wanted: Pools) -> int:
        """Turns that compete for these pools. There is a queue for each set of pools that a task wants."""
        names = {pool.name for pool in pools}
        return sum(
            num for each, num in self._num_waiting.items() if each == wanted or not names.isdisjoint(each or names)
        )

    def _home(self, trajectory: Trajectory, stage: Stage) -> Worker | None:
        return self.engines.get(trajectory.prefiller if stage is Stage.PREFILL else trajectory.engine)

    def _may_stay(self, home: Worker, trajectory: Trajectory, stage: Stage) -> bool:
        """False if the trajectory must move: its own pool is back, or this engine is too far behind.

        With `install_idle` a trajectory always finishes where it started. The engine waits for that before it installs,
        so moving the trajectory to a pool that waits for the new version could deadlock.
        """
        ends_here = self.rules.install_idle and stage is Stage.WHOLE
        if not ends_here and not self._serves(home.pool, self._wanted(trajectory, stage)):
            return False
        version = self._usable(home)
        return version is None or version >= self._needs(trajectory, True)

    # --- what engines hold -------------------------------------------------------------------

    def spend(self, trajectory: Trajectory, engine: Worker, stage: Stage) -> None:
        """Assign the turn to the engine: it now holds the trajectory, and one credit is spent."""
        self._count(trajectory, engine, stage)
        if self._home(trajectory, stage) is not engine:
            self._let_go(trajectory, stage)
            if stage is Stage.PREFILL:
                trajectory.prefiller = engine.name
            else:
                trajectory.engine = engine.name
            if trajectory.id not in engine.trajectories:
                engine.trajectories[trajectory.id] = trajectory
                engine.held_tokens += trajectory.footprint
                self._update(engine)
        trajectory.server = engine.name
        engine.load += 1
        engine.running_tokens += trajectory.turn_tokens
        if engine.load == engine.capacity:
            self._update(engine)

    def give_back(self, trajectory: Trajectory) -> None:
        """The request ended. Return its credit."""
        engine = self.engines.get(trajectory.server)
        trajectory.server = ""
        if engine is not None:
            engine.load -= 1
            engine.running_tokens -= trajectory.turn_tokens
            if engine.load + 1 == engine.capacity:
                self._update(engine)
            if engine.waiting:
                self._ready[engine.name] = None
            if self._queued_in:
                self._is_due = True

    def release(self, trajectory: Trajectory) -> None:
        """Remove the trajectory from all engines and queues."""
        self.withdraw(trajectory)
        self._let_go(trajectory, Stage.PREFILL)
        self._let_go(trajectory, Stage.WHOLE)

    def _let_go(self, trajectory: Trajectory, stage: Stage) -> None:
        if stage is Stage.PREFILL:
            name, trajectory.prefiller = trajectory.prefiller, ""
        else:
            name, trajectory.engine = trajectory.engine, ""
        engine = self.engines.get(name)
        if engine is None or name in (trajectory.engine, trajectory.prefiller):
            return
        del engine.trajectories[trajectory.id]
        engine.held_tokens -= trajectory.footprint
        self._emit(ev.Forget(name, trajectory.id))
        self.changed(engine)
        if not engine.trajectories:
            self._on_idle(engine)

    def _set_aside(self, trajectory: Trajectory) -> None:
        """Reserve KV for this turn, or for the usual length of the task if that is longer."""
        footprint = max(trajectory.turn_tokens, int(self._expected[trajectory.task]))
        more, trajectory.footprint = footprint - trajectory.footprint, footprint
        if more:
            for name in {trajectory.engine, trajectory.prefiller}:
                if (engine := self.engines.get(name)) is not None:
                    engine.held_tokens += more
                    if engine.kv_tokens:
                        self._update(engine)

    def ended(self, trajectory: Trajectory) -> None:
        """Update the usual length of the task."""
        expected = self._expected[trajectory.task]
        step = 1 / LENGTHS_REMEMBERED if expected else 1.0
        self._expected[trajectory.task] = expected + step * (trajectory.turn_tokens - expected)

    def _count(self, trajectory: Trajectory, engine: Worker, stage: Stage) -> None:
        task = self.tally.tasks[trajectory.task]
        task.requests_by_pool[engine.pool] += 1
        is_split = self.rules.tasks[trajectory.task].split
        self.tally.split_requests += stage is Stage.DECODE
        self.tally.split_fallbacks += is_split and stage is Stage.WHOLE
        wanted = self._wanted(trajectory, stage)
        if wanted and engine.pool not in wanted:
            self.tally.fallbacks += 1
            if self._is_alive(wanted) and self._home(trajectory, stage) is not engine:
                self.tally.stray_requests += 1


def _longest_waiting(kinds: dict[Kind, Queue], stuck: set[Kind]) -> Kind | None:
    best: Kind | None = None
    for kind in [*kinds]:
        queue = kinds[kind]
        while queue and queue[0][1].place != queue[0][0]:
            queue.popleft()
        if not queue:
            del kinds[kind]
        elif kind not in stuck and (best is None or queue[0][0] < kinds[best][0][0]):
            best = kind
    return best
