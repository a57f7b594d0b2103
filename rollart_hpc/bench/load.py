"""Load for a controller: workers that talk and do nothing else. Owns who they are and what is measured.

    python -m rollart_hpc.bench.load PLAN        # a `Plan` as JSON; prints a `Told` as JSON

One thread serves all of them (`load_sockets`, `load_roles`). First every slot asks for its next turn as soon as it has
an answer (the saturated window), then turns begin at half the rate reached (the paced window). A window lasts as long
as asked for, and longer if need be: until every engine has installed `INSTALLS` versions.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from rollart_hpc.bench.load_roles import Counts, Engines, Environments, Later, Relays, Rewards, Trainer
from rollart_hpc.bench.load_sockets import Answer, Seat, Sockets, Worker
from rollart_hpc.errors import SiteError
from rollart_hpc.rundir import RunDir
from rollart_hpc.wire import messages as ms
from rollart_hpc.wire.keys import load_client

SLOTS_PER_ENV, SLOTS_PER_REWARD, ENGINES_PER_NODE = 256, 64, 8
MOST_CREDIT = 8000  # of an engine: less than the controller queues for a worker
INSTALLS = 5  # of each engine in each window, at least
LIMIT_S = 60.0  # for what should take seconds
TRAINER_NODE = "trainer"
WAIT_S, PACED_WAIT_S = 0.02, 0.001


class Plan(msgspec.Struct):
    run_dir: str
    address: str
    controller: int  # its pid
    engines: int
    slots: int
    seconds: float


class Cpu(msgspec.Struct):
    """User and system time, in seconds per second or microseconds per turn."""

    share: float  # of all threads
    main_share: float  # of the thread that runs Python
    us_per_turn: float


class Window(msgspec.Struct):
    seconds: float
    turns_per_s: float
    p50_ms: float
    p99_ms: float
    controller: Cpu
    load: Cpu
    fewest_turns: int  # of one engine
    most_turns: int
    fewest_installs: int  # of one engine
    installs: int
    versions: int  # committed
    groups: int  # trained
    scores: int
    cancelled: int  # trajectories
    busy: float  # mean share of the slots that hold a trajectory


class Told(msgspec.Struct):
    workers: int
    register_s: float
    saturated: Window
    paced: Window


def seats_of(engines: int, slots: int) -> list[Seat]:
    """Everybody: 8 engines and a relay a node, an env worker for up to 256 slots, a reward worker for up to 64."""
    sizes = [min(SLOTS_PER_ENV, slots - start) for start in range(0, slots, SLOTS_PER_ENV)]
    num_nodes = -(-engines // ENGINES_PER_NODE)
    credit = min(MOST_CREDIT, max(SLOTS_PER_ENV, -(-5 * slots // (4 * engines))))
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
        self.envs = Environments(self.counts, plan.slots)
        self.trainer = Trainer(self.counts)
        self._later = Later(plan.seconds)
        self._answers: dict[str, Answer] = {
            "env": self.envs.answer, "engine": Engines(self.counts, self._later).answer,
            "trainer": self.trainer.answer, "relay": Relays(self._later).answer,
            "reward": Rewards(self.counts).answer,
        }  # fmt: skip
        self._unwelcome: set[str] = set()
        self._heartbeat_s = 1.0

    def register(self) -> float:
        """Connect everybody; seconds from the first connect to the last Welcome."""
        began_s = time.monotonic()
        seats = seats_of(self.plan.engines, self.plan.slots)
        self._unwelcome = {seat.name for seat in seats}
        self.sockets.connect(seats, self._welcomed)
        self.drive(lambda: not self._unwelcome, "every worker was welcome")
        took_s = time.monotonic() - began_s
        for worker in self.sockets.workers:
            worker.answer = self._answers[worker.seat.role]
        self.sockets.beat_every(self._heartbeat_s)
        trainer = self.sockets.workers[-1]
        self.trainer.begin(trainer)
        trainer.read()
        return took_s

    def _welcomed(self, worker: Worker, message: ms.AnyMessage) -> None:
        if isinstance(message, ms.Welcome):
            self._unwelcome.discard(worker.seat.name)
            self._heartbeat_s = message.heartbeat_s

    def drive(self, is_over: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
        end_s = time.monotonic() + limit_s
        while not is_over():
            self.sockets.serve(PACED_WAIT_S if self.envs.is_paced else WAIT_S)
            self.envs.ask_due()
            self._later.send_due()
            if time.monotonic() > end_s:
                raise SiteError(f"waited {limit_s:g} s until {what}", "look for the reason in the controller's log")

    def warm_up(self) -> None:
        """Until all slots were given a trajectory, every engine has weights and the first step is trained."""
        plan, counts = self.plan, self.counts
        self.drive(lambda: self.envs.num_begun >= plan.slots, "all slots were busy")
        self.drive(lambda: len(counts.installs) == plan.engines, "every engine had weights")
        self.drive(lambda: counts.commits > 0 and len(counts.latencies_s) > 2 * plan.slots, "a step was trained")

    def pace(self, turns_per_s: float) -> None:
        """From now on turns begin at this rate; none of those before is left."""
        self.envs.hold()
        self.drive(lambda: not self.envs.is_waiting, "the turns under way were answered")
        self.envs.pace(turns_per_s)

    def measure(self) -> Window:
        """A window from now on."""
        self.counts.clear()
        busy: list[int] = []
        began_s, controller, load = time.monotonic(), CpuClock(self.plan.controller), CpuClock(os.getpid())

        def is_over() -> bool:
            busy.append(len(self.envs.slots))
            return time.monotonic() >= began_s + self.plan.seconds and self._all_installed()

        self.drive(is_over, f"every engine had installed {INSTALLS} versions", self.plan.seconds + LIMIT_S)
        took_s, turns = time.monotonic() - began_s, len(self.counts.latencies_s)
        share = sum(busy) / len(busy) / self.plan.slots
        return window_of(self.counts, self._served(), took_s, controller.cpu(turns), load.cpu(turns), share)

    def _all_installed(self) -> bool:
        installs = self.counts.installs
        return len(installs) == self.plan.engines and min(installs.values()) >= INSTALLS

    def _served(self) -> list[int]:
        """Turns of each engine."""
        served = [
            self.counts.turns[worker.seat.name] for worker in self.sockets.workers if worker.seat.role == "engine"
        ]
        if not min(served):
            what = f"{served.count(0)} of {len(served)} engines served no turn, others up to {max(served)}"
            raise SiteError(what, "measure more --slots or more --seconds; else the core routes badly")
        return served


def window_of(counts: Counts, served: list[int], took_s: float, controller: Cpu, load: Cpu, busy: float) -> Window:
    latencies = sorted(counts.latencies_s)
    return Window(
        seconds=took_s,
        turns_per_s=len(latencies) / took_s,
        p50_ms=1000 * latencies[len(latencies) // 2],
        p99_ms=1000 * latencies[int(0.99 * (len(latencies) - 1))],
        controller=controller,
        load=load,
        fewest_turns=min(served),
        most_turns=max(served),
        fewest_installs=min(counts.installs.values()),
        installs=counts.installs.total(),
        versions=counts.commits,
        groups=counts.groups,
        scores=counts.scores,
        cancelled=counts.cancelled,
        busy=busy,
    )


class CpuClock:
    """What a process uses from now on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began_s, self._before = time.monotonic(), self._read()

    def cpu(self, turns: int) -> Cpu:
        took_s = time.monotonic() - self._began_s
        process_s, main_s = (now - before for now, before in zip(self._read(), self._before, strict=True))
        return Cpu(process_s / took_s, main_s / took_s, 1e6 * process_s / turns)

    def _read(self) -> tuple[float, float]:
        return _cpu_s(Path(f"/proc/{self._pid}/stat")), _cpu_s(Path(f"/proc/{self._pid}/task/{self._pid}/stat"))


def _cpu_s(stat: Path) -> float:
    fields = stat.read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(plan: Plan) -> Told:
    load = Load(plan)
    register_s = load.register()
    load.warm_up()
    saturated = load.measure()
    load.pace(saturated.turns_per_s / 2)
    return Told(len(load.sockets.workers), register_s, saturated, load.measure())


def main(plan: str) -> int:
    gc.disable()  # nothing here is part of a cycle, and a pause of the load would count as one of the controller
    try:
        told = run(msgspec.json.decode(plan, type=Plan))
    except SiteError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(msgspec.json.encode(told).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
