"""What the controller tells its supervisor."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollart_hpc import __version__
from rollart_hpc.config.schema import ModelConfig, RunConfig, TaskConfig
from rollart_hpc.roles import checkpoints
from rollart_hpc.roles import controller as module
from rollart_hpc.roles.controller import Controller
from rollart_hpc.roles.start import Start
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import ExitCode, RunState
from rollart_hpc.wire import messages as ms
from rollart_hpc.wire.keys import load_client, make_keys
from rollart_hpc.wire.link import Link
from rollart_hpc.wire.messages import Drain, Hello, Progress

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
    return Link(controller.address, load_client(run.keys(1)), hello)


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


def test_a_checkpoint_that_can_not_be_committed_is_a_failed_save(tmp_path: Path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoints, "commit", refuse)
    run = RunDir(tmp_path / "run").create()
    stub = SimpleNamespace(run_dir=run, core=SimpleNamespace(saving=3, attempt=1), pending=deque())
    stub.config = SimpleNamespace(checkpoint=SimpleNamespace(keep=2))
    Controller._saved(stub, ms.Saved(3, ""))  # type: ignore[arg-type]
    (event,) = stub.pending
    assert event.version == 3 and "Input/output error" in event.error
