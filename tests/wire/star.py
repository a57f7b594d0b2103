"""A controller without a core: hub and members in a thread, events recorded, every `TurnWanted` echoed as `Stop`."""

from __future__ import annotations

import os
import queue
import threading
import time
import uuid

import rollart_hpc
from rollart_hpc.types import Frame, Role
from rollart_hpc.wire.hub import Hub
from rollart_hpc.wire.keys import ClientKeys, ServerKeys
from rollart_hpc.wire.members import Joined, Lost, Members
from rollart_hpc.wire.messages import AnyMessage, Heartbeat, Hello, Stop, TurnWanted

HEARTBEAT_S = 0.05
PATIENCE_S = 120.0
SILENCE_S = 60.0  # a loaded machine must not look like a lost worker
SHORT_SILENCE_S = 3.0  # where silence is the point


def make_hello(name: str = "env-0", **changes: object) -> Hello:
    fields: dict[str, object] = {
        "role": "env", "name": name, "node": "here", "pool": "", "capacity": 4, "package": rollart_hpc.__version__,
        "attempt": 1, "incarnation": uuid.uuid4().hex, "pid": os.getpid(),
    }  # fmt: skip
    return Hello(**{**fields, **changes})  # type: ignore[arg-type]


def ask(text: str) -> TurnWanted:
    """What the controller of these tests answers with `Stop(text)`."""
    return TurnWanted(text, 0, 0, 0, 0, 1, True)


class Controller:
    def __init__(
        self,
        server: ServerKeys,
        clients: dict[Role, ClientKeys],
        max_frame_bytes: int = 100_000,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.hub = Hub("127.0.0.1", server, max_frame_bytes=max_frame_bytes)
        self.server, self.clients, self.client = server, clients, clients.get("env")
        self.address = f"tcp://127.0.0.1:{self.hub.port}"
        self.members = Members(self.hub, attempt=1, heartbeat_s=HEARTBEAT_S, silence_s=silence_s)
        self.events: queue.Queue[Joined | Lost] = queue.Queue()
        self.messages: queue.Queue[tuple[str, AnyMessage, list[Frame]]] = queue.Queue()
        self.heartbeat = Heartbeat(0.0)  # the newest
        self.calls: queue.Queue[object] = queue.Queue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for name, message, frames in self.hub.poll(0.02):
                for event in self.members.handle(name, message):
                    self.events.put(event)
                if isinstance(message, Heartbeat):
                    self.heartbeat = message
                if isinstance(message, TurnWanted):
                    self.hub.send(name, Stop(message.trajectory), *frames)
                if not isinstance(message, Heartbeat | Hello):
                    self.messages.put((name, message, frames))
            for event in self.members.tick(time.monotonic()):
                self.events.put(event)

    def event(self) -> Joined | Lost:
        return self.events.get(timeout=PATIENCE_S)

    def counted(self, counter: str, at_least: int = 1) -> int:
        deadline_s = time.monotonic() + PATIENCE_S
        while self.hub.counters[counter] < at_least and time.monotonic() < deadline_s:
            time.sleep(0.01)
        return self.hub.counters[counter]

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self.hub.close()
