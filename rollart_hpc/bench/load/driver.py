"""Creates the workers of the load and measures two windows.

In the saturated window, every slot asks for its next turn as soon as it has an answer. In the paced window, turns start
at half the rate that was reached. A window lasts at least the requested time, and until every engine has installed
`INSTALLS` versions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import msgspec

from rollart_hpc.bench.load.counts import Counts, CpuClock, Window, window_of
from rollart_hpc.bench.load.environments import Environments
from rollart_hpc.bench.load.payloads import MEAN_TURNS, MOST_TURNS, TURN_TOKENS
from rollart_hpc.bench.load.sockets import Answer, Identity, Peer, Sockets
from rollart_hpc.bench.load.workers import Engines, Later, Relays, Rewards, Trainers
from rollart_hpc.config.schema import ObserveConfig
from rollart_hpc.errors import SiteError
from rollart_hpc.rundir import RunDir
from rollart_hpc.wire import messages as ms

SLOTS_PER_ENV, SLOTS_PER_REWARD, ENGINES_PER_NODE = 256, 64, 8
MOST_CREDIT = 8000  # per engine; below the queue limit of the controller for one worker
INSTALLS = 5  # minimum for each engine in each window
STEPS_TO_SETTLE = 3  # between the two windows
LIMIT_S = 60.0  # timeout of operations that should take seconds
TRAINER_NODE, POOL = "trainer", "compute"
WAIT_S, PACED_WAIT_S = 0.02, 0.001


class LoadPlan(msgspec.Struct):
    run_dir: str
    address: str
    controller: int  # its pid
    engines: int
    slots: int
    seconds: float
    steps_to_fill: int  # until as many trajectories are buffered as ever will be
    transcripts: bool = True  # are kept, as runs do by default


class LoadFigures(msgspec.Struct):
    workers: int
    register_s: float
    saturated: Window
    paced: Window


def identities_of(engines: int, slots: int) -> list[Identity]:
    """All workers: 8 engines and a relay per node, an env worker per 256 slots, a reward worker per 64 slots.

    The KV cache of an engine has room for twice its share of the trajectories at their maximum length.
    """
    sizes = [min(SLOTS_PER_ENV, slots - start) for start in range(0, slots, SLOTS_PER_ENV)]
    num_nodes = -(-engines // ENGINES_PER_NODE)
    share = -(-slots // engines)
    credit, kv_tokens = min(MOST_CREDIT, max(SLOTS_PER_ENV, 5 * share // 4)), 2 * share * MOST_TURNS * TURN_TOKENS
    return [
        *(Identity("relay", f"relay-{i}", f"node-{i}", 1) for i in range(num_nodes)),
        Identity("relay", "relay-trainer", TRAINER_NODE, 1),
        *(
            Identity("engine", f"engine-{i}", f"node-{i // ENGINES_PER_NODE}", credit, POOL, kv_tokens=kv_tokens)
            for i in range(engines)
        ),
        *(Identity("env", f"env-{i}", "cpu", size) for i, size in enumerate(sizes)),
        *(Identity("reward", f"reward-{i}", "cpu", SLOTS_PER_REWARD) for i in range(-(-slots // SLOTS_PER_REWARD))),
        Identity("trainer", "trainer", TRAINER_NODE, 1, version=0),
    ]


class Load:
    def __init__(self, plan: LoadPlan) -> None:
        self.plan = plan
        self.counts = Counts()
        self.sockets = Sockets(plan.address, RunDir(plan.run_dir).keys(1))
        observe = ObserveConfig() if plan.transcripts else ObserveConfig(transcripts=0.0)
        self.envs = Environments(self.counts, plan.slots, observe)
        self._later = Later(plan.seconds)
        self.trainer = Trainers(self.counts, self._later)
        self._answers: dict[str, Answer] = {
            "env": self.envs.answer, "engine": Engines(self.counts, self._later).answer,
            "trainer": self.trainer.answer, "relay": Relays(self._later).answer,
            "reward": Rewards(self.counts).answer,
        }  # fmt: skip
        self._unwelcome: set[str] = set()
        self._heartbeat_s = 1.0

    def register(self) -> float:
        """Connect all workers. Returns the seconds from the first connect to the last Welcome."""
        began_s = time.monotonic()
        identities = identities_of(self.plan.engines, self.plan.slots)
        self._unwelcome = {identity.name for identity in identities}
        self.sockets.connect(identities, self._welcomed)
        self.drive(lambda: not self._unwelcome, "every worker to be registered")
        took_s = time.monotonic() - began_s
        for peer in self.sockets.peers:
            peer.answer = self._answers[peer.identity.role]
        self.sockets.beat_every(self._heartbeat_s)
        trainer = self.sockets.peers[-1]
        self.trainer.publish(trainer)
        trainer.read()
        return took_s

    def _welcomed(self, peer: Peer, message: ms.AnyMessage) -> None:
        if isinstance(message, ms.Welcome):
            self._unwelcome.discard(peer.identity.name)
            self._heartbeat_s = message.heartbeat_s

    def drive(self, is_over: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
        end_s = time.monotonic() + limit_s
        while not is_over():
            self.sockets.serve(PACED_WAIT_S if self.envs.is_paced else WAIT_S)
            self.envs.ask_due()
            self._later.do_due()
            if time.monotonic() > end_s:
                raise SiteError(f"waited {limit_s:g} s for {what}", "look for the reason in the controller's log")

    def warm_up(self) -> None:
        """Run until the first trajectories, which all start at once, have ended, and the buffers are full.

        Until then the controller's memory grows, and every new page costs as much as several messages.
        """
        plan, counts = self.plan, self.counts
        self.drive(lambda: self.envs.num_begun >= plan.slots, "all slots to be busy")
        self.drive(lambda: len(counts.installs) == plan.engines, "every engine to install weights")
        self.drive(lambda: len(counts.latencies_s) > MEAN_TURNS * plan.slots, "the first trajectories to end")
        self.drive(lambda: counts.commits >= plan.steps_to_fill, "the first steps to be trained", 2 * LIMIT_S)

    def pace(self, turns_per_s: float) -> None:
        """Finish all turns in flight, then start turns at this rate."""
        self.envs.hold()
        self.drive(lambda: not self.envs.is_waiting, "the turns in flight to be answered")
        self.envs.pace(turns_per_s)
        # The trainer first works off the groups that the saturated window left behind.
        commits = self.counts.commits
        self.drive(lambda: self.counts.commits >= commits + STEPS_TO_SETTLE, "the trainer to catch up")

    def measure(self) -> Window:
        """Measure a window that starts now."""
        self.counts.clear()
        busy: list[int] = []
        began_s, controller, load = time.monotonic(), CpuClock(self.plan.controller), CpuClock(os.getpid())

        def is_over() -> bool:
            busy.append(len(self.envs.slots))
            return time.monotonic() >= began_s + self.plan.seconds and self._all_installed()

        self.drive(is_over, f"every engine to install {INSTALLS} versions", self.plan.seconds + LIMIT_S)
        took_s, turns = time.monotonic() - began_s, len(self.counts.latencies_s)
        share = sum(busy) / len(busy) / self.plan.slots
        return window_of(self.counts, self._served(), took_s, controller.cpu(turns), load.cpu(turns), share)

    def _all_installed(self) -> bool:
        installs = self.counts.installs
        return len(installs) == self.plan.engines and min(installs.values()) >= INSTALLS

    def _served(self) -> list[int]:
        """The number of turns that each engine served."""
        engines = [peer.identity.name for peer in self.sockets.peers if peer.identity.role == "engine"]
        served = [self.counts.turns[name] for name in engines]
        if not min(served):
            what = f"{served.count(0)} of {len(served)} engines served no turns; the busiest one served {max(served)}"
            raise SiteError(what, "use more --slots or --seconds; if that does not help, the core routes unevenly")
        return served


def run(plan: LoadPlan) -> LoadFigures:
    load = Load(plan)
    register_s = load.register()
    load.warm_up()
    saturated = load.measure()
    load.pace(saturated.turns_per_s / 2)
    return LoadFigures(len(load.sockets.peers), register_s, saturated, load.measure())
