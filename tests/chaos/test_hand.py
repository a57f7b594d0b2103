"""The hand of chaos: what it does to a process of a run, and what it refuses."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rollart_hpc.chaos.acts import Act, Kind, Victim
from rollart_hpc.chaos.hand import newest_version
from rollart_hpc.chaos.hands import Hands, Refusal
from rollart_hpc.launch.local import LocalLauncher
from rollart_hpc.rundir import RunDir

LIMIT_S = 60.0
TALKER = """
import socket, sys, time
while True:
    try:
        with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as link:
            while link.recv(1):
                pass
    except OSError:
        time.sleep(0.01)
"""


class Here(LocalLauncher):
    """Without a supervisor."""

    def reach(self, run: RunDir, host: str, command: list[str]) -> list[str]:
        return command


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited too long"
        time.sleep(0.01)


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "a run").create()
    run.begin_attempt()
    return run


@pytest.fixture
def hands(run: RunDir) -> Iterator[Hands]:
    found = Hands(run, Here())
    yield found
    found.close()


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(LIMIT_S)
        yield listening


@pytest.fixture
def process(run: RunDir, server: socket.socket) -> Iterator[subprocess.Popen[bytes]]:
    """Of the run: its output is a log of the run."""
    command = [sys.executable, "-c", TALKER, str(server.getsockname()[1])]
    with open(run.log(1, "env-0"), "wb") as log, subprocess.Popen(command, stdout=log) as process:
        yield process
        process.kill()


def victim(process: subprocess.Popen[bytes], role: str = "env", node: str = "cpu") -> Victim:
    return Victim(f"{role}-0", role, node, "", process.pid, "x")


def test_a_kill(hands, process):
    assert str(process.pid) in hands.do(Act(Kind.KILL, victim(process)))
    assert process.wait(LIMIT_S) == -signal.SIGKILL
    with pytest.raises(Refusal, match=r"is gone|does not belong"):
        hands.do(Act(Kind.KILL, victim(process)))


def test_a_stopped_process_goes_on_after_its_time_and_when_chaos_ends(hands, process):
    hands.do(Act(Kind.STOP, victim(process), seconds=0.2))
    until(lambda: state(process.pid) != "T")
    hands.do(Act(Kind.STOP, victim(process), seconds=LIMIT_S))
    until(lambda: state(process.pid) == "T")
    hands.close()
    assert state(process.pid) != "T"


def test_a_killed_command_leaves_no_process_stopped(hands, process):
    """Its hand's input ends with it."""
    hands.do(Act(Kind.STOP, victim(process), seconds=LIMIT_S))
    for hand in hands._hands.values():
        hand.stdin.close()
    until(lambda: state(process.pid) != "T")


def test_a_slow_process_is_stopped_most_of_the_time(hands, process):
    hands.do(Act(Kind.SLOW, victim(process), seconds=LIMIT_S))
    seen: set[str] = set()
    until(lambda: seen.add(state(process.pid)) or {"T"} < seen)


def test_a_cut_breaks_connections_but_not_the_process(hands, process, server):
    first, _ = server.accept()
    assert "1 connections" in hands.do(Act(Kind.CUT, victim(process), seconds=0.1))
    first.settimeout(LIMIT_S)
    assert first.recv(1) == b""
    again, _ = server.accept()
    assert process.poll() is None
    again.close()


def test_damaged_weights(hands, process, run):
    """The newest version, by its number, and the one that comes."""
    store = run.store_root / "cpu"
    for name in ("v1-9", "v1-10"):
        (store / name).mkdir(parents=True)
        (store / name / "bucket_0.bin").write_bytes(bytes(100))
    try:
        hands.do(Act(Kind.CORRUPT, victim(process, "engine"), seconds=LIMIT_S, point=0.5))
        assert process.wait(LIMIT_S) == -signal.SIGKILL
        until(lambda: (store / "v1-10" / "bucket_0.bin").read_bytes() != bytes(100))
        (store / "draft").mkdir()
        (store / "draft" / "bucket_0.bin").write_bytes(bytes(100))
        (store / "draft").rename(store / "v2-1")
        until(lambda: (store / "v2-1" / "bucket_0.bin").read_bytes().count(0xFF) == 1)
        assert (store / "v1-9" / "bucket_0.bin").read_bytes() == bytes(100)
        assert newest_version(store) == store / "v2-1"
    finally:
        run.remove_store()


def test_no_process_of_another_run_is_touched(hands):
    with pytest.raises(Refusal, match="does not belong"):
        hands.do(Act(Kind.KILL, Victim("env-0", "env", "cpu", "", os.getpid(), "x")))
    with pytest.raises(Refusal, match="found no agent"):
        hands.do(Act(Kind.KILL, Victim("agent-h", "agent", "", "h", 0, "")))
