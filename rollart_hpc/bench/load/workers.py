"""The other workers of the load: they send the messages of real ones without doing the work. Opens no socket.

    engine    Generate -> Generated at once, with the installed version; Install -> Installed after a delay
    reward    ScoreWanted -> Scored at once
    trainer   the last Chunk of a batch -> Committed at once; Published, BatchWanted after a delay
    relay     Adopt, TransferJoin -> Held after a delay

Weights have a random delay because the acknowledgements of real nodes and engines don't arrive in the same millisecond.
"""

from __future__ import annotations

import heapq
import random
import time
from collections.abc import Callable

from rollart_hpc.bench.load.counts import Counts
from rollart_hpc.bench.load.payloads import ANSWER_TOKENS, PROMPT_TOKENS, answer_of
from rollart_hpc.bench.load.sockets import Peer
from rollart_hpc.wire import messages as ms

WEIGHTS = (0.01, 0.06)  # delay of a publication, a transfer to a relay or an install, as a share of the window


class Later:
    """Runs actions after a random delay."""

    def __init__(self, window_s: float) -> None:
        self._random = random.Random(0)
        self._window_s = window_s
        self._due: list[tuple[float, int, Peer, Callable[[], None]]] = []
        self._num = 0

    def do(self, peer: Peer, what: Callable[[], None]) -> None:
        self._num += 1
        due_s = time.monotonic() + self._window_s * self._random.uniform(*WEIGHTS)
        heapq.heappush(self._due, (due_s, self._num, peer, what))

    def send(self, peer: Peer, message: ms.Message) -> None:
        self.do(peer, lambda: peer.send(message))

    def do_due(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, _, peer, what = heapq.heappop(self._due)
            what()
            peer.read()


class Engines:
    def __init__(self, counts: Counts, later: Later) -> None:
        self.counts = counts
        self.installed: dict[str, int] = {}
        self._later = later

    def answer(self, peer: Peer, message: ms.AnyMessage) -> None:
        if isinstance(message, ms.Generate):
            name = peer.identity.name
            self.counts.turns[name] += 1
            done = ms.Generated(message.request, message.trajectory, PROMPT_TOKENS, ANSWER_TOKENS)
            peer.send(done, *answer_of(self.installed[name]))
        elif isinstance(message, ms.Install):
            self._later.do(peer, lambda: self._installed(peer, message))

    def _installed(self, peer: Peer, install: ms.Install) -> None:
        self.installed[peer.identity.name] = install.version
        self.counts.installs[peer.identity.name] += 1
        peer.send(ms.Installed(install.attempt, install.version, 0, 0.0, 0.0))


class Relays:
    def __init__(self, later: Later) -> None:
        self._later = later

    def answer(self, peer: Peer, message: ms.AnyMessage) -> None:
        if isinstance(message, ms.TransferOffer):
            peer.send(ms.TransferReady(message.epoch, "127.0.0.1", 1, ""))
            self._later.send(peer, ms.TransferSent(message.epoch, 0, 0.0, "gloo"))
        elif isinstance(message, (ms.Adopt, ms.TransferJoin)):
            self._later.send(peer, ms.Held(message.attempt, message.version, 0, 0.0))


class Rewards:
    def __init__(self, counts: Counts) -> None:
        self.counts = counts

    def answer(self, peer: Peer, message: ms.AnyMessage) -> None:
        if isinstance(message, ms.ScoreWanted):
            self.counts.scores += 1
            reward = float(self.counts.scores % 2)
            peer.send(ms.Scored(message.trajectory, message.issue, reward, bool(reward), 0.0))


class Trainers:
    """Commits a step as soon as its batch is complete, so versions follow the rate of groups."""

    def __init__(self, counts: Counts, later: Later) -> None:
        self.counts = counts
        self.version = 0
        self._later = later

    def publish(self, peer: Peer) -> None:
        peer.send(ms.Published(1, self.version, 0, 0.0))
        peer.send(ms.BatchWanted(self.version))

    def answer(self, peer: Peer, message: ms.AnyMessage) -> None:
        if not isinstance(message, ms.Chunk):
            return
        self.counts.groups += len({item.group for item in message.items})
        if message.last:
            self.version = message.step + 1
            self.counts.commits += 1
            before, after = f"v{message.step}", f"v{self.version}"
            peer.send(ms.Committed(message.step, self.version, before, after, {}, 0.0, 0.0))
            self._later.do(peer, lambda: self.publish(peer))
