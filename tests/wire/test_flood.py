"""Thousands of connections of strangers against a hub with few descriptors: the run does not notice."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.processes.lifetime import raise_file_limit
from rollart_hpc.wire.keys import ClientKeys
from rollart_hpc.wire.link import Link
from rollart_hpc.wire.messages import Stop
from tests.wire.star import PATIENCE_S, ask, make_hello

STRANGERS = 2000
pytestmark = pytest.mark.slow

# Echoes every turn, and writes a line, a status and a number of descriptors for it, as a controller would.
HUB = """
import json, os, resource, sys
from dataclasses import asdict
from pathlib import Path
from rollart_hpc import descriptors
from rollart_hpc.files import append_line, write_json
from rollart_hpc.processes.lifetime import raise_file_limit
from rollart_hpc.wire import hub as hub_module
from rollart_hpc.wire.hub import Hub
from rollart_hpc.wire.keys import new_keys
from rollart_hpc.wire.members import Members
from rollart_hpc.wire.messages import Stop, TurnWanted

where, soft, hard = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
if "raise" in sys.argv:
    raise_file_limit()
hub_module.HANDSHAKE_MS = 3000  # the test need not last as long as a handshake may
server, clients = new_keys()
hub = Hub("127.0.0.1", server)
members = Members(hub, attempt=1, heartbeat_s=0.2, silence_s=60)
print(json.dumps({"port": hub.port, "keys": asdict(clients["env"])}), flush=True)
while True:
    for name, message, frames in hub.poll(0.2):
        members.handle(name, message)
        if isinstance(message, TurnWanted):
            append_line(where / "ledger", message.trajectory)
            write_json(where / "status", {"files": descriptors.num_open(), "refused": dict(hub.counters)})
            hub.send(name, Stop(message.trajectory))
"""


@contextmanager
def hub_with(where: Path, soft: int, hard: int, *more: str) -> Iterator[tuple[subprocess.Popen[str], int, ClientKeys]]:
    command = [sys.executable, "-c", HUB, str(where), str(soft), str(hard), *more]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            told = json.loads(process.stdout.readline())
            yield process, told["port"], ClientKeys(**told["keys"])
        finally:
            process.kill()


def strangers(stack: ExitStack, port: int, num: int) -> list[socket.socket]:
    """Connections that say the first byte of a greeting and nothing more. Nobody waits for them to be accepted."""
    held = []
    for _ in range(num):
        stranger = stack.enter_context(socket.socket())
        stranger.setblocking(False)
        stranger.connect_ex(("127.0.0.1", port))
        held.append(stranger)
    for stranger in held:
        with suppress(OSError):  # it still waits for the hub, or was closed by it
            stranger.send(b"\xff")
    return held


def echo(link: Link, text: str) -> None:
    link.send(ask(text))
    received = link.recv(PATIENCE_S)
    assert received is not None and received[0] == Stop(text)


def read_status(where: Path) -> dict[str, Any]:
    return dict(json.loads((where / "status").read_text()))


@pytest.mark.parametrize(
    ("soft", "hard", "more"),
    [(1024, 20_000, ["raise"]), (1024, 20_000, []), (1024, 1024, []), (256, 256, [])],
    ids=["raised", "not raised", "hard", "tiny"],
)
def test_strangers_take_neither_the_run_nor_its_files(tmp_path: Path, soft: int, hard: int, more: list[str]) -> None:
    assert raise_file_limit() > STRANGERS + 100
    with ExitStack() as stack:
        process, port, keys = stack.enter_context(hub_with(tmp_path, soft, hard, *more))
        link = Link(f"tcp://127.0.0.1:{port}", keys, make_hello("good-0"))
        stack.callback(link.close)
        echo(link, "before")
        for wave in range(4):
            strangers(stack, port, STRANGERS // 4)
            for number in range(50):
                echo(link, f"{wave}-{number}")
        assert process.poll() is None
        assert len((tmp_path / "ledger").read_text().splitlines()) == 1 + 4 * 50
        later = Link(f"tcp://127.0.0.1:{port}", keys, make_hello("good-1"), welcome_timeout_s=PATIENCE_S)
        stack.callback(later.close)
        echo(later, "after")
        until_gone(link, tmp_path)


def until_gone(link: Link, where: Path) -> None:
    """Strangers that prove no key are closed although they never leave."""
    give_up_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up_s:
        echo(link, "look")
        if read_status(where)["files"] < 60:
            return
        time.sleep(0.2)
    raise AssertionError(f"strangers still hold descriptors: {read_status(where)}")
