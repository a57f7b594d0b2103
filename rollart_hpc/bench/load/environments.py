"""The env workers of the load: each slot plays one trajectory after another. Owns the start and latency of turns.

Play -> TurnWanted <-> Generated -> ... -> Ended with transcript and token record
"""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass

from rollart_hpc.bench.load.counts import Counts
from rollart_hpc.bench.load.payloads import ANSWER_TOKENS, PROMPT, TURN_TOKENS, kept_bytes, num_turns, record_of
from rollart_hpc.bench.load.sockets import Peer
from rollart_hpc.config.schema import ObserveConfig
from rollart_hpc.vocabulary import DONE
from rollart_hpc.wire import messages as ms


@dataclass(slots=True)
class Slot:
    """A trajectory in play."""

    peer: Peer
    trajectory: str
    issue: int
    turns: int
    turn: int = 0
    asked_s: float = math.inf  # when the turn in flight was due; inf: no turn is in flight


class Environments:
    """All trajectories in play. The next turn starts when the last one is answered or, if `is_paced`, when due."""

    def __init__(self, counts: Counts, num_slots: int, observe: ObserveConfig) -> None:
        self.slots: dict[str, Slot] = {}
        self.counts = counts
        self.is_paced = False
        self.num_begun = 0  # trajectories
        self._observe = observe
        self._rate = 1.0
        self._num_slots = num_slots
        self._idle: deque[Slot] = deque()
        self._next_s = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether any turn is in flight."""
        return any(slot.asked_s < math.inf for slot in self.slots.values())

    def answer(self, peer: Peer, message: ms.AnyMessage) -> None:
        match message:
            case ms.Generated():
                self._answered(message.trajectory)
            case ms.Play():
                self._begin(peer, message)
            case ms.Resend():
                slot = self.slots.get(message.trajectory)
                if slot is not None and slot.issue == message.issue and slot.asked_s < math.inf:
                    self._ask(slot, slot.asked_s, resend=True)
            case ms.Cancel():
                slot = self.slots.pop(message.trajectory, None)
                self.counts.cancelled += slot is not None

    def _begin(self, peer: Peer, play: ms.Play) -> None:
        turns = num_turns(play.trajectory)
        if self.num_begun < self._num_slots:  # the first ones start together but should not end together
            turns = 1 + self.num_begun % turns
        self.num_begun += 1
        slot = Slot(peer, play.trajectory, play.issue, turns)
        self.slots[play.trajectory] = slot
        self._go_on(slot)

    def _answered(self, trajectory: str) -> None:
        slot = self.slots.get(trajectory)
        if slot is None:
            return
        self.counts.latencies_s.append(time.monotonic() - slot.asked_s)
        slot.asked_s = math.inf
        slot.turn += 1
        if slot.turn < slot.turns:
            self._go_on(slot)
            return
        del self.slots[trajectory]
        tokens = slot.turns * TURN_TOKENS
        ended = ms.Ended(trajectory, slot.issue, DONE, "", slot.turns, tokens, [tokens])
        slot.peer.send(ended, *record_of(slot.turns, kept_bytes(trajectory, slot.turns, self._observe)))

    def _go_on(self, slot: Slot) -> None:
        if self.is_paced:
            self._idle.append(slot)
        else:
            self._ask(slot, time.monotonic())

    def hold(self) -> None:
        """Start no more turns."""
        self.is_paced, self._next_s = True, math.inf

    def pace(self, rate: float) -> None:
        """From now on, `rate` turns are due per second."""
        self.is_paced, self._rate, self._next_s = True, rate, time.monotonic()

    def ask_due(self) -> None:
        """Start the turns that are due. Due times are fixed, whatever was answered; latency is measured from them."""
        now, asked = time.monotonic(), set()
        while self._idle and self._next_s <= now:
            slot = self._idle.popleft()
            if self.slots.get(slot.trajectory) is slot:  # it has not been cancelled
                self._ask(slot, self._next_s)
                self._next_s += 1 / self._rate
                asked.add(slot.peer)
        for peer in asked:
            peer.read()
        if not self._idle:
            self._next_s = max(self._next_s, now)

    def _ask(self, slot: Slot, due_s: float, resend: bool = False) -> None:
        slot.asked_s = due_s
        prefix = slot.turn * TURN_TOKENS
        full = resend or slot.turn == 0
        wanted = ms.TurnWanted(slot.trajectory, slot.issue, slot.turn, prefix, 0, ANSWER_TOKENS, full)
        slot.peer.send(wanted, PROMPT)
