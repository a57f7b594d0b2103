"""What the workers of the load say: the talk of real ones, without their work. Owns turns, their times and the counts
of everything that is answered; opens no socket.

    env       Play -> turns -> Ended with transcript and token record; as many turns as `num_turns` draws
    engine    Generate -> Generated at once, with the version it has installed
    reward    ScoreWanted -> Scored at once
    trainer   the last Chunk of a batch -> Committed, Published, BatchWanted at once
    relay     Adopt, TransferJoin -> Held after a while
    engine    Install -> Installed after a while

Weights take a while because acknowledgements of real nodes and engines don't arrive all in the same millisecond.
"""

from __future__ import annotations

import heapq
import random
import struct
import time
import zlib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from rollart_hpc.bench.load_sockets import Worker
from rollart_hpc.wire import messages as ms

PROMPT_TOKENS, ANSWER_TOKENS = 256, 64
PROMPT_BYTES, ANSWER_BYTES = 4 * PROMPT_TOKENS, 12 * ANSWER_TOKENS  # an answer: ids, log-probs and versions
TURN_TOKENS = PROMPT_TOKENS + ANSWER_TOKENS
FEWEST_TURNS, MEAN_TURNS, MOST_TURNS = 4, 8, 12
CHARACTERS_PER_TOKEN = 4  # of a transcript
WEIGHTS = (0.01, 0.03)  # of a window: how long a transfer to a relay takes, and an install
RECORD_BYTES = (CHARACTERS_PER_TOKEN + 12) * TURN_TOKENS  # of a turn in Ended
_PROMPT = bytes(PROMPT_BYTES)
_IDS = bytes(4 * ANSWER_TOKENS)


def num_turns(trajectory: str) -> int:
    return FEWEST_TURNS + zlib.crc32(trajectory.encode()) % (MOST_TURNS + 1 - FEWEST_TURNS)


@cache
def answer_of(version: int) -> tuple[bytes, bytes, bytes]:
    return _IDS, _IDS, struct.pack("<i", version) * ANSWER_TOKENS


@cache
def record_of(turns: int) -> tuple[bytes, ...]:
    """Frames of Ended: the transcript, then ids, log-probs and versions of all tokens."""
    tokens = turns * TURN_TOKENS
    return bytes(CHARACTERS_PER_TOKEN * tokens), *[bytes(4 * tokens)] * 3


@dataclass
class Counts:
    """What happened in a window."""

    turns: Counter[str] = field(default_factory=Counter)  # by engine
    installs: Counter[str] = field(default_factory=Counter)  # by engine
    latencies_s: list[float] = field(default_factory=list)
    scores: int = 0
    groups: int = 0  # trained
    commits: int = 0
    cancelled: int = 0  # trajectories

    def clear(self) -> None:
        vars(self).update(vars(Counts()))


@dataclass(slots=True)
class Slot:
    """A trajectory that is played."""

    worker: Worker
    trajectory: str
    issue: int
    turns: int
    turn: int = 0
    asked_s: float = 0.0


class Environments:
    """Turns under way. `rate` is how many begin per second; 0: each as soon as the last one is answered."""

    def __init__(self, counts: Counts, num_slots: int) -> None:
        self.slots: dict[str, Slot] = {}
        self.counts = counts
        self.rate = 0.0
        self._num_slots = num_slots
        self._num_begun = 0
        self._idle: deque[Slot] = deque()
        self._next_s = 0.0

    @property
    def num_idle(self) -> int:
        """Trajectories whose next turn is not due yet."""
        return len(self._idle)

    def answer(self, worker: Worker, message: ms.AnyMessage) -> None:
        match message:
            case ms.Generated():
                self._answered(message.trajectory)
            case ms.Play():
                self._begin(worker, message)
            case ms.Resend():
                slot = self.slots.get(message.trajectory)
                if slot is not None and slot.issue == message.issue:
                    self._ask(slot, slot.asked_s)
            case ms.Cancel():
                slot = self.slots.pop(message.trajectory, None)
                self.counts.cancelled += slot is not None

    def _begin(self, worker: Worker, play: ms.Play) -> None:
        turns = num_turns(play.trajectory)
        if self._num_begun < self._num_slots:  # the first ones begin together: let them not end together
            turns = 1 + self._num_begun % turns
        self._num_begun += 1
        slot = Slot(worker, play.trajectory, play.issue, turns)
        self.slots[play.trajectory] = slot
        self._go_on(slot)

    def _answered(self, trajectory: str) -> None:
        slot = self.slots.get(trajectory)
        if slot is None:
            return
        self.counts.latencies_s.append(time.monotonic() - slot.asked_s)
        slot.turn += 1
        if slot.turn < slot.turns:
            self._go_on(slot)
            return
        del self.slots[trajectory]
        tokens = slot.turns * TURN_TOKENS
        ended = ms.Ended(trajectory, slot.issue, "done", "", slot.turns, tokens, [tokens])
        slot.worker.send(ended, *record_of(slot.turns))

    def _go_on(self, slot: Slot) -> None:
        if self.rate:
            self._idle.append(slot)
        else:
            self._ask(slot, time.monotonic())

    def pace(self, rate: float) -> None:
        self.rate, self._next_s = rate, time.monotonic()

    def ask_due(self) -> None:
        """Turns are due at fixed times, whether or not earlier ones were answered: their latency counts from there."""
        now = time.monotonic()
        while self._idle and self._next_s <= now:
            slot = self._idle.popleft()
            if self.slots.get(slot.trajectory) is slot:  # not cancelled meanwhile
                self._ask(slot, self._next_s)
                slot.worker.read()
                self._next_s += 1 / self.rate
        if not self._idle:
            self._next_s = max(self._next_s, now)

    def _ask(self, slot: Slot, due_s: float) -> None:
        slot.asked_s = due_s
        prefix = slot.turn * TURN_TOKENS
        wanted = ms.TurnWanted(slot.trajectory, slot.issue, slot.turn, prefix, 0, ANSWER_TOKENS, slot.turn == 0)
        slot.worker.send(wanted, _PROMPT)


class Later:
    """Answers that take a while."""

    def __init__(self, window_s: float) -> None:
        self._random = random.Random(0)
        self._window_s = window_s
        self._due: list[tuple[float, int, Worker, ms.Message, Callable[[], None]]] = []
        self._num = 0

    def send(self, worker: Worker, message: ms.Message, then: Callable[[], None] = lambda: None) -> None:
        self._num += 1
        due_s = time.monotonic() + self._window_s * self._random.uniform(*WEIGHTS)
        heapq.heappush(self._due, (due_s, self._num, worker, message, then))

    def send_due(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, _, worker, message, then = heapq.heappop(self._due)
            then()
            worker.send(message)
            worker.read()


class Engines:
    def __init__(self, counts: Counts, later: Later) -> None:
        self.counts = counts
        self.installed: dict[str, int] = {}
        self._later = later

    def answer(self, worker: Worker, message: ms.AnyMessage) -> None:
        name = worker.seat.name
        if isinstance(message, ms.Generate):
            self.counts.turns[name] += 1
            done = ms.Generated(message.request, message.trajectory, PROMPT_TOKENS, ANSWER_TOKENS)
            worker.send(done, *answer_of(self.installed[name]))
        elif isinstance(message, ms.Install):
            done_ = ms.Installed(message.attempt, message.version, 0, 0.0, 0.0)
            self._later.send(worker, done_, lambda: self._installed(name, message.version))

    def _installed(self, name: str, version: int) -> None:
        self.installed[name] = version
        self.counts.installs[name] += 1


class Relays:
    def __init__(self, later: Later) -> None:
        self._later = later

    def answer(self, worker: Worker, message: ms.AnyMessage) -> None:
        if isinstance(message, ms.TransferOffer):
            worker.send(ms.TransferReady(message.epoch, "127.0.0.1", 1))
            self._later.send(worker, ms.TransferSent(message.epoch, 0, 0.0, "gloo"))
        elif isinstance(message, (ms.Adopt, ms.TransferJoin)):
            self._later.send(worker, ms.Held(message.attempt, message.version, 0, 0.0))


class Rewards:
    def __init__(self, counts: Counts) -> None:
        self.counts = counts

    def answer(self, worker: Worker, message: ms.AnyMessage) -> None:
        if isinstance(message, ms.ScoreWanted):
            self.counts.scores += 1
            reward = float(self.counts.scores % 2)
            worker.send(ms.Scored(message.trajectory, message.issue, reward, bool(reward), 0.0))


class Trainer:
    """Commits a step as soon as it has the whole batch: versions come as fast as groups complete."""

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self.version = 0

    def begin(self, worker: Worker) -> None:
        worker.send(ms.Published(1, self.version, 0, 0.0))
        worker.send(ms.BatchWanted(self.version))

    def answer(self, worker: Worker, message: ms.AnyMessage) -> None:
        if not isinstance(message, ms.Chunk):
            return
        self.counts.groups += len({item.group for item in message.items})
        if message.last:
            self.version = message.step + 1
            self.counts.commits += 1
            before, after = f"v{message.step}", f"v{self.version}"
            worker.send(ms.Committed(message.step, self.version, before, after, {}, 0.0, 0.0))
            self.begin(worker)
