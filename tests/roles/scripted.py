"""A controller that a test plays by hand: real hub, real keys, real role processes on a real run directory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import TypeVar

import numpy as np

from rollart_hpc.config.resolved import write_resolved
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.rundir import RunDir
from rollart_hpc.types import Frame, TokenRecord
from rollart_hpc.wire.hub import Hub
from rollart_hpc.wire.keys import load_server, make_keys
from rollart_hpc.wire.members import Joined, Lost, Members
from rollart_hpc.wire.messages import AnyMessage, Heartbeat, Hello, Message

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
M = TypeVar("M", bound=Message)


class Scripted:
    def __init__(self, path: Path, config: RunConfig) -> None:
        self.run = RunDir(path).create()
        write_resolved(self.run.config, config)
        self.attempt = self.run.begin_attempt()
        make_keys(self.run.keys(self.attempt))
        self.hub = Hub("127.0.0.1", load_server(self.run.keys(self.attempt)))
        self.members = Members(self.hub, attempt=self.attempt, heartbeat_s=0.2, silence_s=60)
        self.changes: deque[Joined | Lost] = deque()
        self.waiting: deque[tuple[AnyMessage, list[Frame]]] = deque()
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, role: str, *options: str, name: str = "worker-0") -> subprocess.Popen[bytes]:
        """Start a role and wait until it has joined."""
        command = [
            sys.executable, "-m", f"rollart_hpc.roles.{role}", "--run-dir", str(self.run.path), "--name", name,
            "--address", f"tcp://127.0.0.1:{self.hub.port}", "--attempt", str(self.attempt), "--node", "here",
            *options,
        ]  # fmt: skip
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
        self.processes.append(process)
        deadline_s = time.monotonic() + PATIENCE_S
        while name not in self.members.alive:
            assert process.poll() is None, f"{role} ended with {process.returncode}"
            assert time.monotonic() < deadline_s, f"{role} did not join"
            self._poll(0.2)
        return process

    def send(self, message: Message, *frames: Frame, to: str = "worker-0") -> None:
        assert self.hub.send(to, message, *frames)

    def expect(self, kind: type[M], *, trajectory: str | None = None) -> tuple[M, list[Frame]]:
        """The next message of this kind (and trajectory); others are kept."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            for entry in self.waiting:
                message = entry[0]
                if isinstance(message, kind) and trajectory in (None, getattr(message, "trajectory", None)):
                    self.waiting.remove(entry)
                    return message, entry[1]
            left_s = deadline_s - time.monotonic()
            assert left_s > 0, f"no {kind.__name__}, but {[type(m).__name__ for m, _ in self.waiting]}"
            self._poll(left_s)

    def idle(self, seconds: float) -> None:
        """Listen for a while: for what must not come."""
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            self._poll(left_s)

    def _poll(self, timeout_s: float) -> None:
        for name, message, frames in self.hub.poll(min(timeout_s, 0.2)):
            self.changes += self.members.handle(name, message)
            if not isinstance(message, Heartbeat | Hello):
                self.waiting.append((message, frames))

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.hub.close()


def sampled(ids: np.ndarray | list[int], version: int = 4) -> list[Frame]:
    """Frames of a Generated message."""
    count = len(ids)
    logprobs = -np.arange(1, count + 1, dtype=np.float32)
    return TokenRecord(np.array(ids, np.int32), logprobs, np.full(count, version, np.int32)).to_frames()
