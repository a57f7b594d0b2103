"""2,000 TCP connections without a key against the controller of a live run with the usual soft limit of files."""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rollart_hpc.processes.lifetime import raise_file_limit
from tests.acceptance.live import Live, live
from tests.acceptance.reliability import store

CONNECTIONS = 2000
SOFT = 1024
HARD = (20_000, 1024)  # where the soft limit can be raised, and where it can't
PART = 0.8  # of the turns/s before; the strangers' own CPU is on the same two cores


def strangers(keep: Path, window_s: float = 60.0) -> bool:
    raise_file_limit()
    latency = "tasks.frozenlake.trouble.turn_latency.mean_s=0.5"
    attacks = []
    for hard in HARD:
        name, files = f"strangers-{hard}", (SOFT, hard)
        with live(keep, name, latency, "timeouts.silence_s=20", files=files) as run, ExitStack() as stack:
            run.until_step(5)
            attacks.append({"hard": hard, **attack(run, stack, window_s)})
            print(attacks[-1], flush=True)
    store("strangers", {"connections": CONNECTIONS, "soft": SOFT, "seconds": window_s, "attacks": attacks})
    return all(is_unnoticed(figures) for figures in attacks)


def is_unnoticed(figures: dict[str, Any]) -> bool:
    same = figures["attempt_before"] == figures["attempt_after"] and figures["step_after"] > figures["step_before"]
    return same and figures["turns_after"] >= PART * figures["turns_before"]


def attack(run: Live, stack: ExitStack, window_s: float) -> dict[str, Any]:
    controller = run.pids()["controller"]
    address = json.loads((run.run.latest / "controller.json").read_text())["address"]
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    before = run.status()
    figures = {"files_before": num_files(controller), "turns_before": run.turns_per_s(window_s)}
    held = [stack.enter_context(knock(host, int(port))) for _ in range(CONNECTIONS)]
    turns, began_s, most = run.turns(), time.monotonic(), 0
    while time.monotonic() < began_s + window_s:
        most = max(most, num_files(controller))
        time.sleep(0.5)
        for number, stranger in enumerate(held):
            if is_closed(stranger):  # it comes again, as a scanner would
                held[number] = stack.enter_context(knock(host, int(port)))
    after = run.status()
    return figures | {
        "turns_after": (run.turns() - turns) / (time.monotonic() - began_s),
        "attempt_before": before["attempt"],
        "attempt_after": after["attempt"],
        "step_before": before["step"],
        "step_after": after["step"],
        "files_most": most,
    }


def knock(host: str, port: int) -> socket.socket:
    stranger = socket.socket()
    stranger.setblocking(False)
    stranger.connect_ex((host, port))
    return stranger


def is_closed(stranger: socket.socket) -> bool:
    """Also says the first byte of a greeting, once it is connected."""
    try:
        stranger.send(b"\xff")
        return stranger.recv(64) == b""
    except BlockingIOError:
        return False
    except OSError:
        stranger.close()
        return True


def num_files(pid: int) -> int:
    """0 if the process is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0
