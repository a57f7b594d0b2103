"""Relays in processes of their own, driven by hand."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollart_hpc.weights.store import NodeStore
from rollart_hpc.wire.messages import AnyMessage, Message, WhoAreYou, decode, encode
from tests.processes import server

DEADLINE_S = 30.0
SHORT_S = 3.0  # a deadline that a test waits for
PATIENCE_S = 120.0


class Peer:
    """A relay process of one node."""

    def __init__(self, root: Path, node: str, deadline_s: float) -> None:
        from tests.weights.peer import main

        self.store, self.deadline_s = NodeStore(root, node), deadline_s
        self._pipe, theirs = server.Pipe()
        self.process = server.Process(target=main, args=(theirs, root, node, deadline_s), daemon=True)
        self.process.start()
        theirs.close()
        assert isinstance(self.recv(), WhoAreYou)

    def send(self, message: Message) -> None:
        self._pipe.send_bytes(encode(message))

    def recv(self) -> AnyMessage:
        assert self._pipe.poll(PATIENCE_S), "no answer from the relay"
        return decode(self._pipe.recv_bytes())

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid
        os.kill(self.process.pid, number)
        if number == signal.SIGKILL:
            self.process.join()

    def close(self) -> None:
        if self.process.is_alive():
            self.signal(signal.SIGKILL)
        self._pipe.close()


class Peers:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.deadline_s = DEADLINE_S
        self._all: list[Peer] = []

    def start(self, node: str) -> Peer:
        self._all.append(Peer(self.root, node, self.deadline_s))
        return self._all[-1]

    def close(self) -> None:
        for peer in self._all:
            peer.close()


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[Peers]:
    made = Peers(tmp_path / "root")
    yield made
    made.close()
