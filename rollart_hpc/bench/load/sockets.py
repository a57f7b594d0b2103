"""The sockets of the load: one DEALER per worker, in one thread. Owns contexts, polling and heartbeats; knows no role.

`zmq.Poller` checks every socket on every call. Here epoll watches the file descriptor of each socket, so the cost of a
round depends only on the sockets that are ready. ZeroMQ signals a descriptor only once, and a send may consume the
signal of a message that has just arrived. So a socket is also read until it is empty after each send.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from rollart_hpc import __version__
from rollart_hpc.errors import SiteError
from rollart_hpc.processes.lifetime import raise_file_limit
from rollart_hpc.types import Role
from rollart_hpc.wire import messages as ms
from rollart_hpc.wire.hub import identity_of
from rollart_hpc.wire.keys import ClientKeys, load_client
from rollart_hpc.wire.link import CLOCK_BEATS
from rollart_hpc.wire.parts import receive_frames, send_parts, unpack

FILES_PER_SOCKET = 2  # the connection, and the descriptor that wakes its reader
SPARE_FILES = 100
LOST = (ms.WhoAreYou, ms.Refused)
LOOKS = 4  # how often each worker is checked per heartbeat interval


@dataclass(frozen=True)
class Identity:
    """The worker that a socket belongs to."""

    role: Role
    name: str
    node: str
    capacity: int
    pool: str = ""
    version: int = -1
    kv_tokens: int = 0


class Peer:
    """The DEALER socket of one worker. `answer` is called with each message."""

    def __init__(
        self, context: zmq.Context[Any], address: str, keys: ClientKeys, identity: Identity, answer: Answer
    ) -> None:
        self.identity, self.answer = identity, answer
        self.unsent = self.unheard = self.unbeaten = 0  # checks since the last message out, message in, heartbeat
        self.socket = context.socket(zmq.DEALER)
        self.socket.identity = identity_of(identity.name, "1")
        self.socket.curve_publickey, self.socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
        self.socket.curve_serverkey = keys.server_public.encode()
        self.socket.sndhwm = self.socket.rcvhwm = 20_000
        self.socket.linger = 0
        self.socket.connect(address)
        who = identity.role, identity.name, identity.node, identity.pool, identity.capacity
        self.send(ms.Hello(*who, __version__, 1, "1", 0, version=identity.version, kv_tokens=identity.kv_tokens))

    def send(self, message: ms.Message, *frames: bytes) -> None:
        self.unsent = 0
        send_parts(self.socket, (ms.encode(message), *frames))

    def read(self) -> None:
        """Read and answer messages until none is left."""
        while True:
            try:
                frames = receive_frames(self.socket)
            except zmq.Again:
                return
            self.unheard = 0
            message = ms.decode(unpack(frames)[0])
            if isinstance(message, LOST):
                why = message.reason if isinstance(message, ms.Refused) else "the controller no longer knows it"
                raise SiteError(f"{self.identity.name}: {why}", "look for the reason in the controller's log")
            self.answer(self, message)

    def beat_if_due(self) -> None:
        """Send a heartbeat when a real worker would. Any other message counts as a sign of life."""
        self.unsent += 1
        self.unheard += 1
        self.unbeaten += 1
        if max(self.unsent, min(self.unheard, self.unbeaten), self.unbeaten // CLOCK_BEATS) > LOOKS:
            self.unbeaten = 0
            self.send(ms.Heartbeat(time.monotonic()))
            self.read()


Answer = Callable[[Peer, ms.AnyMessage], None]


class Sockets:
    """All workers of the load."""

    def __init__(self, address: str, keys: Path) -> None:
        """`keys`: the directory with the keys of the roles."""
        self.peers: list[Peer] = []
        self._address, self._key_files = address, keys
        self._context = zmq.Context()
        self._epoll = select.epoll()
        self._by_fd: dict[int, Peer] = {}
        self._look_s = float("inf")  # when the next worker is checked
        self._look_every_s = 0.0
        self._num_looks = 0

    def connect(self, identities: list[Identity], answer: Answer) -> None:
        _need_files(FILES_PER_SOCKET * len(identities) + SPARE_FILES)
        self._context.set(zmq.MAX_SOCKETS, len(identities) + 1)
        for identity in identities:
            keys = load_client(self._key_files, identity.role)
            peer = Peer(self._context, self._address, keys, identity, answer)
            self.peers.append(peer)
            fd = int(peer.socket.getsockopt(zmq.FD))
            self._by_fd[fd] = peer
            self._epoll.register(fd, select.EPOLLIN)
            peer.read()

    def beat_every(self, seconds: float) -> None:
        """Spread the heartbeats of the workers over time, as those of independent processes are."""
        self._look_every_s, self._look_s = seconds / LOOKS / len(self.peers), time.monotonic()

    def serve(self, wait_s: float) -> None:
        """Read messages that have arrived. If there are none, wait up to `wait_s`."""
        for fd, _ in self._epoll.poll(wait_s, len(self._by_fd)):
            self._by_fd[fd].read()
        now = time.monotonic()
        while self._look_s <= now:
            self._look_s += self._look_every_s
            self.peers[self._num_looks % len(self.peers)].beat_if_due()
            self._num_looks += 1


def _need_files(num: int) -> None:
    limit = raise_file_limit()
    if limit < num:
        what = f"the load needs {num} open files, but the hard limit is {limit}"
        raise SiteError(what, "raise the limit (`ulimit -Hn`, or limits.conf), or measure fewer engines and slots")
