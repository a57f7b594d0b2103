"""Load for a controller: workers that do nothing but talk. Owns their sockets; needs no engine and no environment.

    python -m rollart_hpc.bench.load RUN_DIR ADDRESS SLOTS SECONDS

One thread plays env workers (a socket for up to 256 slots, as a real worker has), two engines that answer at once, and
a trainer that publishes a version and never trains. First all slots ask for their next turn as soon as they have an
answer (the saturated phase), then at half the rate reached (the paced phase). Prints a line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq

from rollart_hpc import __version__
from rollart_hpc.rundir import RunDir
from rollart_hpc.wire import messages as ms
from rollart_hpc.wire.hub import identity_of
from rollart_hpc.wire.keys import ClientKeys, load_client

SLOTS_PER_SOCKET = 256
PROMPT_BYTES, ANSWER_TOKENS = 1024, 64
_PROMPT = bytes(PROMPT_BYTES)
_ANSWER = [bytes(4 * ANSWER_TOKENS)] * 3  # ids, log-probs, versions
START_S = 60.0


class Worker:
    """A DEALER under the name of a worker. No thread of its own: it never falls silent while it works."""

    def __init__(self, context: zmq.Context[Any], address: str, keys: ClientKeys, name: str, capacity: int) -> None:
        self.name, self.role = name, name.partition("-")[0]
        self.socket = context.socket(zmq.DEALER)
        self.socket.identity = identity_of(name, "1")
        self.socket.curve_publickey, self.socket.curve_secretkey = keys.public.encode(), keys.secret.encode()
        self.socket.curve_serverkey = keys.server_public.encode()
        self.socket.sndhwm = self.socket.rcvhwm = 20_000
        self.socket.linger = 0
        self.socket.connect(address)
        pool = "compute" if self.role == "engine" else ""
        version = 0 if self.role == "trainer" else -1
        self.send(ms.Hello(self.role, name, "load", pool, capacity, __version__, 1, "1", 0, version))

    def send(self, message: ms.Message, *frames: bytes) -> None:
        self.socket.send_multipart([ms.encode(message), *frames], copy=False)

    def receive(self) -> Iterator[ms.AnyMessage]:
        while True:
            try:
                parts = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            yield ms.decode(parts[0].buffer)


@dataclass
class Slots:
    """Turns under way and their times. `rate` limits how many begin per second; 0: as many as answers come."""

    owners: dict[str, Worker] = field(default_factory=dict)
    issues: dict[str, int] = field(default_factory=dict)
    turns: dict[str, int] = field(default_factory=dict)
    asked_s: dict[str, float] = field(default_factory=dict)
    idle: deque[str] = field(default_factory=deque)
    latencies_s: list[float] = field(default_factory=list)
    rate: float = 0.0
    _next_s: float = 0.0

    def begin(self, worker: Worker, play: ms.Play) -> None:
        self.owners[play.trajectory] = worker
        self.issues[play.trajectory] = play.issue
        self.turns[play.trajectory] = -1
        self.idle.append(play.trajectory)

    def answered(self, trajectory: str) -> None:
        self.latencies_s.append(time.monotonic() - self.asked_s[trajectory])
        self.idle.append(trajectory)

    def ask(self) -> None:
        now = time.monotonic()
        self._next_s = max(self._next_s, now - 0.1)
        while self.idle and (not self.rate or self._next_s <= now):
            self._next_s += 1 / self.rate if self.rate else 0.0
            trajectory = self.idle.popleft()
            self.turns[trajectory] += 1
            self.asked_s[trajectory] = time.monotonic()
            issue, turn = self.issues[trajectory], self.turns[trajectory]
            wanted = ms.TurnWanted(trajectory, issue, turn, 0, 0, ANSWER_TOKENS, True)
            self.owners[trajectory].send(wanted, _PROMPT)


class Load:
    def __init__(self, run: RunDir, address: str, num_slots: int) -> None:
        context: zmq.Context[Any] = zmq.Context()
        keys = load_client(run.keys(1))
        sizes = [min(SLOTS_PER_SOCKET, num_slots - start) for start in range(0, num_slots, SLOTS_PER_SOCKET)]
        crew = [("engine-0", num_slots), ("engine-1", num_slots), ("trainer-0", 1)]
        crew += [(f"env-{i}", size) for i, size in enumerate(sizes)]
        self.num_sockets = len(crew)
        self.slots = Slots()
        self._poller = zmq.Poller()
        self._workers: dict[Any, Worker] = {}
        for name, capacity in crew:
            worker = Worker(context, address, keys, name, capacity)
            self._workers[worker.socket] = worker
            self._poller.register(worker.socket, zmq.POLLIN)
        self._beaten_s = 0.0

    def drive(self, until_s: float, is_over: Any = lambda: False) -> None:
        while (now := time.monotonic()) < until_s and not is_over():
            if now - self._beaten_s > 1.0:
                self._beaten_s = now
                for worker in self._workers.values():
                    worker.send(ms.Heartbeat(now))
            for socket, _ in self._poller.poll(1 if self.slots.rate else 20):
                worker = self._workers[socket]
                for message in worker.receive():
                    self._take(worker, message)
            self.slots.ask()

    def _take(self, worker: Worker, message: ms.AnyMessage) -> None:
        match message:
            case ms.Generated():
                self.slots.answered(message.trajectory)
            case ms.Generate():
                done = ms.Generated(message.request, message.trajectory, PROMPT_BYTES // 4, ANSWER_TOKENS)
                worker.send(done, *_ANSWER)
            case ms.Play():
                self.slots.begin(worker, message)
            case ms.TransferOffer():
                worker.send(ms.TransferReady(message.epoch, "127.0.0.1", 1))
            case ms.TransferJoin():
                worker.send(ms.Installed(message.attempt, message.version, 0, 0.0, 0.0))
            case ms.Welcome() if worker.role == "trainer":
                worker.send(ms.Published(1, 0, 0, 0.0))
                worker.send(ms.BatchWanted(0))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def measure(load: Load, controller: int, seconds: float) -> dict[str, float]:
    """Turns per second, their 99th percentile, and what they cost the controller."""
    load.slots.latencies_s.clear()
    began_s, began_cpu_s = time.monotonic(), cpu_s(controller)
    load.drive(began_s + seconds)
    took_s, took_cpu_s = time.monotonic() - began_s, cpu_s(controller) - began_cpu_s
    latencies = sorted(load.slots.latencies_s)
    num = max(len(latencies), 1)
    p99_s = latencies[int(0.99 * (num - 1))] if latencies else float("nan")
    return {"turns_per_s": num / took_s, "p99_ms": 1000 * p99_s, "cpu_us_per_turn": 1e6 * took_cpu_s / num}


def main(run_dir: str, address: str, slots: str, seconds: str, controller: str) -> None:
    load = Load(RunDir(run_dir), address, int(slots))
    load.drive(time.monotonic() + START_S, lambda: len(load.slots.owners) == int(slots))
    assert len(load.slots.owners) == int(slots), f"{len(load.slots.owners)} of {slots} slots were given work"
    load.drive(time.monotonic() + START_S, lambda: len(load.slots.latencies_s) >= 2 * int(slots))  # all are under way
    saturated = measure(load, int(controller), float(seconds))
    load.slots.rate = saturated["turns_per_s"] / 2
    load.drive(time.monotonic() + 1.0)
    paced = measure(load, int(controller), float(seconds))
    print(json.dumps({"sockets": load.num_sockets, "saturated": saturated, "paced": paced}))


if __name__ == "__main__":
    main(*sys.argv[1:])
