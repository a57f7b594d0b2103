"""The relay as a process, registered with a hub: two nodes on one machine, restarts, and what is left at the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rollart_hpc.config.resolved import write_resolved
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.rundir import RunDir
from rollart_hpc.types import WeightsId
from rollart_hpc.weights.store import NodeStore
from rollart_hpc.wire import keys
from rollart_hpc.wire.members import Joined
from rollart_hpc.wire.messages import (
    Adopt,
    AnyMessage,
    Held,
    Stop,
    TransferFailed,
    TransferJoin,
    TransferOffer,
    TransferReady,
    TransferSent,
)
from tests.wire.star import Controller

pytestmark = pytest.mark.slow

ID = WeightsId(1, 4)
PATIENCE_S = 120.0
SILENCE_S = 5.0  # tests wait for it


class Cluster:
    """A controller, and relays of two nodes."""

    def __init__(self, directory: Path) -> None:
        self.run = RunDir(directory / "run").create()
        attempt = self.run.begin_attempt()
        write_resolved(self.run.config, RunConfig())
        if not (self.run.keys(attempt) / keys.SERVER_FILE).exists():
            keys.make_keys(self.run.keys(attempt))
        directory = self.run.keys(attempt)
        self.controller = Controller(
            keys.load_server(directory), {"relay": keys.load_client(directory, "relay")}, silence_s=SILENCE_S
        )
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, node: str) -> None:
        name = f"relay-{node}"
        command = [sys.executable, "-m", "rollart_hpc.roles.relay", "--run-dir", str(self.run.path), "--name", name,
                   "--node", node, "--attempt", "1", "--address", self.controller.address]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
        self.processes[name] = subprocess.Popen(command, env=environment)
        joined = self.controller.event()
        assert isinstance(joined, Joined) and joined.hello.role == "relay"

    def store(self, node: str) -> NodeStore:
        return NodeStore(self.run.store_root, node)

    def send(self, node: str, message: object) -> None:
        assert self.controller.hub.send(f"relay-{node}", message)  # type: ignore[arg-type]

    def recv(self) -> tuple[str, AnyMessage]:
        name, message, _ = self.controller.messages.get(timeout=PATIENCE_S)
        return name, message

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.controller.close()
        self.run.remove_store()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.close()


def test_life_of_two_relays(cluster: Cluster) -> None:
    named = [("a", torch.arange(1000.0)), ("b", torch.ones(3).bfloat16())]
    cluster.store("n0").write(ID, named, 1024)
    cluster.start("n0")
    cluster.start("n1")
    assert isinstance(held := cluster.recv()[1], Held) and held.version == 4  # told at its start

    cluster.send("n0", Adopt(*ID))
    assert isinstance(cluster.recv()[1], Held)
    cluster.send("n0", TransferOffer(1, *ID, 2))
    _, ready = cluster.recv()
    assert isinstance(ready, TransferReady)
    cluster.send("n1", TransferJoin(1, *ID, 1, 2, ready.host, ready.port, ready.secret))
    answers = dict([cluster.recv(), cluster.recv()])
    assert isinstance(answers["relay-n0"], TransferSent) and isinstance(answers["relay-n1"], Held)
    assert torch.equal(dict(cluster.store("n1").open(ID))["a"], named[0][1])

    killed = cluster.processes["relay-n1"]
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    cluster.controller.event()  # lost
    cluster.start("n1")
    name, held = cluster.recv()
    assert name == "relay-n1" and isinstance(held, Held) and (held.attempt, held.version) == ID

    for node in ("n0", "n1"):
        cluster.send(node, Stop("over"))
        assert cluster.processes[f"relay-{node}"].wait(PATIENCE_S) == 0
        assert not cluster.store(node).directory.exists()
    assert not cluster.run.store_root.exists()
    assert cluster.run.trace_part(1, "relay-n0").exists()


def test_a_relay_that_lost_its_controller_leaves_the_store_to_the_next_one(cluster: Cluster) -> None:
    cluster.start("n0")
    cluster.store("n0").write(ID, [("a", torch.ones(3))], 1024)
    cluster.controller._stop.set()
    assert cluster.processes["relay-n0"].wait(PATIENCE_S) == 4
    assert cluster.store("n0").versions() == [ID]


def test_a_version_that_can_t_be_adopted_is_told_and_the_relay_goes_on(cluster: Cluster) -> None:
    cluster.start("n0")
    cluster.send("n0", Adopt(1, 9))
    _, failed = cluster.recv()
    assert isinstance(failed, TransferFailed) and failed.epoch == 0 and "can't adopt" in failed.reason
    cluster.store("n0").write(ID, [("a", torch.ones(3))], 1024)
    cluster.send("n0", Adopt(*ID))
    assert isinstance(cluster.recv()[1], Held)


def test_a_superseded_relay_leaves_the_store_to_the_newer_one(cluster: Cluster) -> None:
    cluster.start("n0")
    store = cluster.store("n0")
    store.write(ID, [("a", torch.ones(3))], 1024)
    store.claim("the newer one")
    cluster.send("n0", Stop("over"))
    assert cluster.processes["relay-n0"].wait(PATIENCE_S) == 0
    assert store.versions() == [ID]
