"""Processes forked from one that has torch imported: they look, end and die as started ones do."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollart_hpc.config.schema import EngineConfig, RunConfig, TrainerConfig
from rollart_hpc.launch.command import environment
from rollart_hpc.launch.place import LocalPlace
from rollart_hpc.launch.plan import Proc
from rollart_hpc.launch.preloaded import ForkedProcess, NotPreloaded, Preloaded, preloaded_kinds, preloaded_roles
from rollart_hpc.launch.process import Order

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Preloaded]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        server = Preloaded(tmp_path_factory.mktemp("preloaded") / "log", preloaded_kinds(RunConfig()))
    yield server
    server.close()


def fork(server: Preloaded, deed: str, log: Path) -> ForkedProcess:
    with log.open("ab") as file:
        variables = environment() | {"COLOUR": "blue"}
        return server.fork("tests.launch.forked", [deed], variables, file.fileno(), file.fileno())


def wait_for_end(pid: int) -> None:
    descriptor = os.pidfd_open(pid)
    assert select.select([descriptor], [], [], PATIENCE_S)[0], "it does not end"
    os.close(descriptor)


def test_exit_code_output_variables_and_session(preloaded: Preloaded, tmp_path: Path) -> None:
    for code in (0, 3):
        process = fork(preloaded, str(code), tmp_path / "log")
        assert process.wait() == code
    lines = (tmp_path / "log").read_text().splitlines()
    assert sorted(lines) == ["complained", "complained", "said 0 blue True True 1", "said 3 blue True True 1"]


def test_several_at_once_each_killed_by_its_id(preloaded: Preloaded, tmp_path: Path) -> None:
    processes = [fork(preloaded, "wait", tmp_path / "log") for _ in range(3)]
    for process in reversed(processes):
        os.killpg(process.pid, signal.SIGKILL)
        wait_for_end(process.pid)
        assert process.wait() == -signal.SIGKILL


def test_the_place_forks_the_roles_it_was_told_and_starts_the_others(preloaded: Preloaded, tmp_path: Path) -> None:
    place = LocalPlace(preloaded, frozenset({"relay"}))
    command = [sys.executable, "-P", "-m", "tests.launch.forked", "7"]
    variables = environment() | {"COLOUR": "red", "PYTHONPATH": str(ROOT)}
    forked = place.start(Order(Proc("relay-a", "relay", "cpu", "a"), 1, tmp_path / "relay"), command, variables)
    started = place.start(Order(Proc("env-0", "env", "cpu", "a"), 1, tmp_path / "env"), command, variables)
    for child in (forked, started):
        wait_for_end(child.pid)
        assert child.has_ended() and child.reap() == 7
    assert "said 7 red True True" in (tmp_path / "relay").read_text()
    assert "said 7 red True False" in (tmp_path / "env").read_text()


def test_children_die_with_it_and_what_follows_is_started_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    server = Preloaded(tmp_path / "server", ("relay",))
    process = fork(server, "wait", tmp_path / "log")
    os.kill(server.pid, signal.SIGKILL)
    wait_for_end(process.pid)
    assert process.wait() == -signal.SIGKILL
    with pytest.raises(NotPreloaded):
        fork(server, "0", tmp_path / "log")
    order = Order(Proc("relay-a", "relay", "cpu", "a"), 1, tmp_path / "relay")
    variables = environment() | {"COLOUR": "red"}
    command = [sys.executable, "-P", "-m", "tests.launch.forked", "0"]
    child = LocalPlace(server, frozenset({"relay"})).start(order, command, variables)
    wait_for_end(child.pid)
    assert child.reap() == 0
    server.close()


def test_roles_share_imports_where_there_is_enough_to_share() -> None:
    both = frozenset({"relay", "engine", "trainer"})
    assert preloaded_roles(RunConfig()) == both
    assert preloaded_roles(RunConfig(trainer=TrainerConfig(kind="megatron"))) == both
    assert preloaded_roles(RunConfig(engine=EngineConfig(kind="vllm"))) == {"relay", "trainer"}
    neither = RunConfig(engine=EngineConfig(kind="vllm"), trainer=TrainerConfig(kind="megatron"))
    assert preloaded_roles(neither) == frozenset()
