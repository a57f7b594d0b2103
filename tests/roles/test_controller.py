"""What the controller tells its supervisor."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollart_hpc import __version__
from rollart_hpc.config.schema import ModelConfig, RunConfig, TaskConfig
from rollart_hpc.flow import bench
from rollart_hpc.roles import controller as module
from rollart_hpc.roles.controller import Controller
from rollart_hpc.roles.start import Start
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import ExitCode, RunState
from rollart_hpc.wire.keys import load_client, make_keys
from rollart_hpc.wire.link import Link
from rollart_hpc.wire.messages import Drain, Heartbeat, Hello, Play, Progress, Published, Silent, TurnWanted

CONFIG = RunConfig(model=ModelConfig("directory", "model"), tasks={"lake": TaskConfig(name="lake")})
LIMIT_S = 60.0


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Controller, list[int], RunDir]]:
    monkeypatch.setattr(module, "PROGRESS_S", 0.0)
    run = RunDir(tmp_path / "run").create()
    make_keys(run.keys(run.begin_attempt()))
    start = Start("controller", run, CONFIG, "controller", "", 1, "cpu", "", 0, 1, "x")
    controller, codes = Controller(start), []
    thread = threading.Thread(target=lambda: codes.append(controller.run()), daemon=True)
    thread.start()
    yield controller, codes, run
    thread.join(LIMIT_S)


def join(controller: Controller, run: RunDir, role: str) -> Link:
    hello = Hello(role, role, "cpu", "", 1, __version__, 1, f"{role}-x", 0)
    return Link(controller.address, load_client(run.keys(1), role), hello)


def until(link: Link, **wanted: object) -> Progress:
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        received = link.recv(1.0)
        told = received[0] if received is not None else None
        if isinstance(told, Progress) and all(getattr(told, key) == value for key, value in wanted.items()):
            return told
    raise AssertionError(f"was never told {wanted}")


def test_the_supervisor_hears_who_is_there_and_how_it_ends(running: tuple[Controller, list[int], RunDir]) -> None:
    controller, codes, run = running
    supervisor = join(controller, run, "supervisor")
    first = until(supervisor, alive={"controller": 1, "supervisor": 1})
    assert (first.state, first.progress, first.to_score) == (RunState.STARTING, 0, 0)
    env = join(controller, run, "env")
    until(supervisor, alive={"controller": 1, "supervisor": 1, "env": 1})
    env.close()
    until(supervisor, alive={"controller": 1, "supervisor": 1})
    supervisor.send(Drain("cancelled", at_once=True))
    until(supervisor, state=RunState.DRAINED)
    supervisor.close()
    while not codes:
        time.sleep(0.01)
    assert codes == [ExitCode.DRAINED]
    assert controller.hub.counters["unreachable"] == 0


def test_an_env_worker_whose_main_loop_is_stuck_is_set_aside_and_replaced_unless_it_moves(running, monkeypatch) -> None:
    """By real messages: the worker heartbeats all the time."""
    monkeypatch.setattr(bench, "REPLACE_S", 0.5)
    controller, _, run = running
    supervisor, env = join(controller, run, "supervisor"), join(controller, run, "env")
    trainer = Link(
        controller.address, load_client(run.keys(1)), Hello("trainer", "t", "cpu", "", 1, __version__, 1, "t", 0, 0)
    )
    trainer.send(Published(1, 0, 0, 0.0))
    received = env.recv(LIMIT_S)
    assert received is not None and isinstance(received[0], Play)
    env.send(Heartbeat(0.0, 31.0))
    silent = told(supervisor, Silent)
    assert (silent.name, silent.incarnation) == ("env", "env-x")
    assert "env" in controller.core.bench.aside
    status = controller.journal.status()
    assert status.aside["env"].startswith("env on node cpu: its main loop has been blocked for 31 s")
    env.send(TurnWanted(received[0].trajectory, 0, 0, 0, 0, 1, True), b"")
    deadline_s = time.monotonic() + LIMIT_S
    while controller.core.bench.aside and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert "env" in controller.core.workers, "its late answer brings it back"
    supervisor.send(Drain("cancelled", at_once=True))
    for link in (env, trainer, supervisor):
        link.close()


def told(link: Link, kind: type) -> Silent:
    deadline_s = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline_s:
        received = link.recv(1.0)
        if received is not None and isinstance(received[0], kind):
            return received[0]
    raise AssertionError(f"was never told {kind.__name__}")
