"""A relay without a controller, in a process of its own: messages come and leave through a pipe."""

from __future__ import annotations

import threading
from multiprocessing.connection import Connection
from pathlib import Path

from rollart_hpc.observe.trace import Tracer
from rollart_hpc.weights.relay import Relay
from rollart_hpc.weights.store import NodeStore
from rollart_hpc.wire.messages import Message, WhoAreYou, decode, encode


def main(pipe: Connection, root: Path, node: str, deadline_s: float) -> None:
    lock = threading.Lock()

    def report(message: Message) -> None:
        with lock:
            pipe.send_bytes(encode(message))

    relay = Relay(NodeStore(root, node), "127.0.0.1", deadline_s, report, Tracer(None, node))
    report(WhoAreYou())  # imports are over
    relay.announce()
    while data := pipe.recv_bytes():
        relay.handle(decode(data))
    relay.close()
