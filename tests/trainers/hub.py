"""A controller that does what the test says: hub and members in a thread of their own."""

from __future__ import annotations

import queue
import threading
import time

from rollart_hpc.types import Frame
from rollart_hpc.wire.hub import Hub
from rollart_hpc.wire.keys import ServerKeys
from rollart_hpc.wire.members import Joined, Members
from rollart_hpc.wire.messages import AnyMessage, Bye, Heartbeat, Hello, Message


class Controller:
    def __init__(self, server: ServerKeys, attempt: int) -> None:
        self._hub = Hub("127.0.0.1", server)
        self.address = f"tcp://127.0.0.1:{self._hub.port}"
        self._members = Members(self._hub, attempt=attempt, heartbeat_s=0.2, silence_s=60.0)
        self._outbox: queue.Queue[tuple[str, Message, tuple[Frame, ...]]] = queue.Queue()
        self.hellos: queue.Queue[Hello] = queue.Queue()
        self.messages: queue.Queue[tuple[str, AnyMessage]] = queue.Queue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def send(self, name: str, message: Message, *frames: Frame) -> None:
        self._outbox.put((name, message, frames))

    def _run(self) -> None:
        while not self._stop.is_set():
            for name, message, _ in self._hub.poll(0.01):
                for event in self._members.handle(name, message):
                    if isinstance(event, Joined):
                        self.hellos.put(event.hello)
                if not isinstance(message, Heartbeat | Hello | Bye):
                    self.messages.put((name, message))
            while not self._outbox.empty():
                name, message, frames = self._outbox.get()
                self._hub.send(name, message, *frames)
            self._members.tick(time.monotonic())

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._hub.close()
