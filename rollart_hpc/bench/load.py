"""Load for a controller: workers that talk and do nothing else. Owns who they are and what is measured.

    python -m rollart_hpc.bench.load PLAN        # a `Plan` as JSON; prints a `Told` as JSON

One thread serves all of them (`load_sockets`, `load_roles`). First every slot asks for its next turn as soon as it has
an answer (the saturated window), then turns begin at half the rate reached (the paced window). A window lasts as long
as asked for, and longer if need be: until every engine has installed `INSTALLS` versions.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from rollart_hpc.bench.load_roles import Counts, Engines, Environments, Later, Relays, Rewards, Trainer
from rollart_hpc.bench.load_sockets import Answer, Seat, Sockets, Worker
from rollart_hpc.config.rundir import RunDir
from rollart_hpc.errors import SiteError
from rollart_hpc.wire import messages as ms
from rollart_hpc.wire.keys import load_client

SLOTS_PER_ENV, SLOTS_PER_REWARD, ENGINES_PER_NODE = 256, 64, 8
INSTALLS = 5
LIMIT_S = 60.0  # for what should take seconds
TRAINER_NODE = "trainer"
WAIT_S = 0.02


class Plan(msgspec.Struct):
    run_dir: str
    address: str
    controller: int  # its pid
    engines: int
    slots: int
    seconds: float


class Window(msgspec.Struct):
    """CPU is user and system time of all threads, in seconds per second or microseconds per turn."""

    seconds: float
    turns: int
    p50_ms: float
    p99_ms: float
    controller_cpu: float
    load_cpu: float
    controller_us_per_turn: float
    fewest_turns: int  # of one engine
    most_turns: int
    fewest_installs: int  # of one engine
    installs: int
    versions: int  # committed
    groups: int  # trained
    scores: int
    cancelled: int  # trajectories
    busy: float  # share of the slots that hold a trajectory at the end

    @property
    def turns_per_s(self) -> float:
        return self.turns / self.seconds


class Told(msgspec.Struct):
    workers: int
    register_s: float
    saturated: Window
    paced: Window


def seats_of(engines: int, slots: int) -> list[Seat]:
    """Everybody: 8 engines and a relay a node, an env worker for up to 256 slots, a reward worker for up to 64."""
    sizes = [min(SLOTS_PER_ENV, slots - start) for start in range(0, slots, SLOTS_PER_ENV)]
    num_nodes = -(-engines // ENGINES_PER_NODE)
    credit = max(SLOTS_PER_ENV, 2 * -(-slots // engines))
    return [
        *(Seat("relay", f"relay-{i}", f"node-{i}", 1) for i in range(num_nodes)),
        Seat("relay", "relay-trainer", TRAINER_NODE, 1),
        *(Seat("engine", f"engine-{i}", f"node-{i // ENGINES_PER_NODE}", credit, "compute") for i in range(engines)),
        *(Seat("env", f"env-{i}", "cpu", size) for i, size in enumerate(sizes)),
        *(Seat("reward", f"reward-{i}", "cpu", SLOTS_PER_REWARD) for i in range(-(-slots // SLOTS_PER_REWARD))),
        Seat("trainer", "trainer", TRAINER_NODE, 1, version=0),
    ]


class Load:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.counts = Counts()
        self.sockets = Sockets(plan.address, load_client(RunDir(plan.run_dir).keys(1)))
        later = Later()
        self.envs = Environments(self.counts, plan.slots)
        self.engines = Engines(self.counts, later)
        self.trainer = Trainer(self.counts)
        self._answers: dict[str, Answer] = {
            "env": self.envs.answer, "engine": self.engines.answer, "trainer": self.trainer.answer,
            "relay": Relays(later).answer, "reward": Rewards(self.counts).answer,
        }  # fmt: skip
        self._later = later
        self._unwelcome: set[str] = set()
        self._heartbeat_s = 1.0

    def register(self) -> float:
        """Connect everybody; seconds from the first connect to the last Welcome."""
        began_s = time.monotonic()
        seats = seats_of(self.plan.engines, self.plan.slots)
        self._unwelcome = {seat.name for seat in seats}
        self.sockets.connect(seats, self._welcomed)
        self.drive(lambda: not self._unwelcome, "every worker is welcome")
        took_s = time.monotonic() - began_s
        for worker in self.sockets.workers:
            worker.answer = self._answers[worker.seat.role]
        self.sockets.beat_every(self._heartbeat_s)
        self.trainer.begin(self.sockets.workers[-1])
        return took_s

    def _welcomed(self, worker: Worker, message: ms.AnyMessage) -> None:
        if isinstance(message, ms.Refused):
            raise SiteError(f"{worker.seat.name} was refused: {message.reason}")
        if isinstance(message, ms.Welcome):
            self._unwelcome.discard(worker.seat.name)
            self._heartbeat_s = message.heartbeat_s

    def drive(self, is_over: Callable[[], bool], what: str) -> None:
        limit_s = time.monotonic() + LIMIT_S
        while not is_over():
            self.sockets.serve(0.001 if self.envs.rate else WAIT_S)
            self.envs.ask_due()
            self._later.send_due()
            if time.monotonic() > limit_s:
                raise SiteError(f"waited {LIMIT_S:g} s until {what}", "is the controller's log clean?")

    def warm_up(self) -> None:
        """Until all slots are busy and the first step is trained."""
        wanted = 2 * self.plan.slots
        self.drive(lambda: len(self.envs.slots) == self.plan.slots, "all slots are busy")
        self.drive(lambda: self.counts.commits > 0 and len(self.counts.latencies_s) > wanted, "a step is trained")

    def measure(self) -> Window:
        plan, counts = self.plan, self.counts
        counts.clear()
        began_s, cpu_before = time.monotonic(), (cpu_s(plan.controller), cpu_s(os.getpid()))
        end_s = began_s + plan.seconds
        self.drive(lambda: time.monotonic() >= end_s and self._all_installed(), f"{INSTALLS} versions are installed")
        took_s = time.monotonic() - began_s
        controller_s, load_s = cpu_s(plan.controller) - cpu_before[0], cpu_s(os.getpid()) - cpu_before[1]
        latencies = sorted(counts.latencies_s)
        served = [counts.turns[worker.seat.name] for worker in self.sockets.workers if worker.seat.role == "engine"]
        if not min(served):
            idle = sum(not turns for turns in served)
            raise SiteError(f"{idle} of {plan.engines} engines served no turn in {took_s:.1f} s", "raise --seconds")
        return Window(
            seconds=took_s,
            turns=len(latencies),
            p50_ms=1000 * latencies[len(latencies) // 2],
            p99_ms=1000 * latencies[int(0.99 * (len(latencies) - 1))],
            controller_cpu=controller_s / took_s,
            load_cpu=load_s / took_s,
            controller_us_per_turn=1e6 * controller_s / len(latencies),
            fewest_turns=min(served),
            most_turns=max(served),
            fewest_installs=min(counts.installs.values()),
            installs=counts.installs.total(),
            versions=counts.commits,
            groups=counts.groups,
            scores=counts.scores,
            cancelled=counts.cancelled,
            busy=len(self.envs.slots) / plan.slots,
        )

    def _all_installed(self) -> bool:
        installs = self.counts.installs
        return len(installs) == self.plan.engines and min(installs.values()) >= INSTALLS


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(plan: Plan) -> Told:
    load = Load(plan)
    register_s = load.register()
    load.warm_up()
    saturated = load.measure()
    load.envs.pace(saturated.turns_per_s / 2)
    load.drive(_after(1.0), "turns come at half the rate")
    return Told(len(load.sockets.workers), register_s, saturated, load.measure())


def _after(seconds: float) -> Callable[[], bool]:
    end_s = time.monotonic() + seconds
    return lambda: time.monotonic() >= end_s


if __name__ == "__main__":
    told = run(msgspec.json.decode(sys.argv[1], type=Plan))
    sys.stdout.write(msgspec.json.encode(told).decode())
