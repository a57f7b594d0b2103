"""Who owes an answer for too long. Owns the deadlines of engines, env workers, reward workers and relays.

Nothing is kept per request: a trajectory knows since when it is where it is, a worker when it last moved. Each worker
is looked at every few seconds, a few workers per tick. Limits follow what was measured lately (`pace`), with a floor:

| worker | owes                          | counts as progress                    | limit                            |
|--------|-------------------------------|---------------------------------------|----------------------------------|
| engine | turns it was sent             | an answer, a token (in heartbeats)    | `turn_s`, or 10 x the slowest    |
| engine | an install                    | its answer                            | `install_s`, or 10 x the slowest |
| env    | plays that step or reset      | a turn, an end                        | `play_s`, or 10 x the slowest    |
| env    | one play                      | its turn or end                       | the task's timeouts, `play_s`    |
| reward | scores; it does one at a time | an answer                             | twice `reward_timeout_s`         |
| relay  | a copy of the weights         | its answer                            | as for an install                |

A trainer owes nothing here: a step may take any time, and the watchdog of the run sees if nothing moves at all.
"""

from __future__ import annotations

from collections import Counter, deque
from typing import NamedTuple

from rollart_hpc.flow.pace import Pace
from rollart_hpc.flow.rules import FlowRules
from rollart_hpc.flow.state import State, Trajectory, Worker

WATCHED = frozenset({"engine", "env", "reward", "relay"})
LOOK_S = 5.0  # between two looks at a worker
LOOKS = 64  # workers looked at per tick
BLIND_S = 5.0  # ticks further apart: this process was blocked, and the answers are still unread
TIMES = 10  # a limit is this many times the slowest that was measured
WIDEST = 4  # and at most this many times its floor
FIRST = 1.5  # more patience before the first answer: kernels are compiled
ONLY = 2  # more patience with the only worker of its role
MANY = 4  # plays that all are silent
OTHERS_S = 60.0  # for this long the others of a role may still come, or come back
TURN_FLOORS, TURN_TIMES = 30, 5  # a single turn of an engine that makes progress may take much longer


class Look(NamedTuple):
    reason: str  # why the worker should be set aside; "" = it should not
    late: list[Trajectory]  # whose turn or play this worker seems to have lost


NOTHING = Look("", [])


class Watch:
    def __init__(self, rules: FlowRules) -> None:
        self.rules = rules
        self.num: Counter[str] = Counter()  # workers by role
        self.turns, self.installs = Pace(), Pace()  # whole turns; installs and transfers
        self._paces: dict[tuple[str, str], Pace] = {}
        self._queue: deque[tuple[float, Worker]] = deque()  # when each is looked at next
        self._gone: set[int] = set()  # ids of workers that left and are still in the queue
        self._alone_s: dict[str, float] = {}  # by role: since when it has no more than one worker
        self._seeing_s = 0.0  # since when this process sees answers
        self._now = 0.0

    def joined(self, worker: Worker) -> None:
        if worker.role not in WATCHED:
            return
        worker.pace = self._paces.setdefault((worker.role, worker.pool), Pace())
        worker.moved_s = self._now
        self.num[worker.role] += 1
        if self.num[worker.role] > 1:
            self._alone_s.pop(worker.role, None)
        else:
            self._alone_s.setdefault(worker.role, self._now)
        self._queue.append((self._now + LOOK_S, worker))

    def left(self, worker: Worker) -> None:
        if worker.role in WATCHED:
            self.num[worker.role] -= 1
            if self.num[worker.role] == 1:
                self._alone_s[worker.role] = self._now
            self._gone.add(id(worker))

    def has_others(self, role: str) -> bool:
        """True if there are several workers of the role, or soon may be: after a start the first one is no witness."""
        expected = self.rules.num_envs if role == "env" else self.rules.num_rewards
        since_s = max(self._alone_s.get(role, 0.0), self._seeing_s)
        return self.num[role] > 1 or (expected > 1 and self._now < since_s + OTHERS_S)

    def tick(self, now: float) -> list[Worker]:
        """The workers to look at now."""
        if now - self._now > BLIND_S:
            self._seeing_s = now
        self._now = now
        queue = self._queue
        due: list[Worker] = []
        while queue and queue[0][0] <= now and len(due) < LOOKS:
            worker = queue.popleft()[1]
            if id(worker) in self._gone:
                self._gone.discard(id(worker))
            else:
                due.append(worker)
                queue.append((now + LOOK_S, worker))
        return due

    # --- one worker --------------------------------------------------------------------------

    def look(self, worker: Worker) -> Look:
        if worker.asked_s is not None:
            return self._look_at_install(worker, worker.asked_s)
        owed = self.owed(worker)
        if not owed:
            return NOTHING
        quiet_s = self._since(max(worker.moved_s, min(t.since_s for t in owed)))
        limit_s = self._limit_s(worker, owed)
        if quiet_s > limit_s:
            what = {"engine": "turns", "env": "plays", "reward": "scores"}[worker.role]
            return Look(f"it owes {len(owed)} {what} and did not move for {quiet_s:.0f} s, limit {limit_s:.0f} s", [])
        return Look("", [t for t in owed if self._is_late(worker, t)])

    def owed(self, worker: Worker) -> list[Trajectory]:
        mine = worker.trajectories.values()
        if worker.role == "engine":
            return [t for t in mine if t.server == worker.name]
        return [t for t in mine if t.state is State.STEPPING] if worker.role == "env" else list(mine)

    def is_stuck(self, worker: Worker, age_s: float) -> bool:
        """True if its main loop has not come around for too long, and others wait for it.

        Engines are judged by tokens: a forward pass that compiles, and an install, block their loop.
        """
        rules, role = self.rules, worker.role
        if role == "env":
            return age_s > rules.stuck_s and bool(self.owed(worker))
        if role == "reward":
            return age_s > self._score_limit_s and bool(worker.trajectories)
        return role == "relay" and worker.asked_s is not None and age_s > self._install_limit_s

    def _since(self, when_s: float) -> float:
        return self._now - max(when_s, self._seeing_s)

    def _look_at_install(self, worker: Worker, asked_s: float) -> Look:
        quiet_s, limit_s = self._since(asked_s), self._install_limit_s
        if quiet_s <= limit_s:
            return NOTHING
        return Look(f"it owes new weights for {quiet_s:.0f} s, limit {limit_s:.0f} s", [])

    @property
    def _install_limit_s(self) -> float:
        slowest, floor_s = self.installs.slowest(self._now), self.rules.install_s
        return floor_s if slowest is None else min(max(TIMES * slowest, floor_s / 10), WIDEST * floor_s)

    @property
    def _score_limit_s(self) -> float:
        """A worker interrupts a call at its timeout and exits at twice that."""
        return 2 * self.rules.reward_timeout_s + LOOK_S

    def _limit_s(self, worker: Worker, owed: list[Trajectory]) -> float:
        if worker.role == "reward":
            return self._score_limit_s
        slowest = worker.pace.slowest(self._now)
        if worker.role == "env":
            longest_s = max(self._play_limit_s(t) for t in owed)
            if slowest is None or len(owed) < MANY:
                return longest_s
            return min(max(TIMES * slowest, self.rules.play_s) * (1.0 if worker.has_answered else FIRST), longest_s)
        widest_s = WIDEST * self.rules.turn_s
        limit_s = widest_s if slowest is None else min(max(TIMES * slowest, self.rules.turn_s), widest_s)
        patience = (1.0 if worker.has_answered else FIRST) * (ONLY if self.num[worker.role] == 1 else 1.0)
        return limit_s * patience

    def _play_limit_s(self, trajectory: Trajectory) -> float:
        """Env workers end what exceeds the task's timeouts; this is for those that do not."""
        return 1.25 * self.rules.tasks[trajectory.task].step_s + self.rules.play_s

    def _is_late(self, worker: Worker, trajectory: Trajectory) -> bool:
        if worker.role == "env":
            limit_s = self._play_limit_s(trajectory)
        elif worker.role == "engine":
            slowest = self.turns.slowest(self._now) or 0.0
            limit_s = max(TURN_FLOORS * self.rules.turn_s, TURN_TIMES * slowest) * 2.0**trajectory.overdue
        else:
            return False
        return self._since(trajectory.since_s) > limit_s
