"""A role without its work: joins, waits, ends when told. The controller is a real hub with real membership.

    python fake_role.py ROLE [arguments of a role]

What a process does besides is read from RUN_DIR/behaviour.json: {NAME: {...}}
    "exit": CODE         log an error and end at once
    "hang": true         do nothing, not even join
The controller has as many transcripts to score as RUN_DIR/to_score says, and stands still with RUN_DIR/idle. It tells
the supervisor over the link; what it saw is in RUN_DIR/seen.json, and there is no status.json.
It ends with the code in RUN_DIR/end as soon as that file exists, and drains with 5; with RUN_DIR/deaf
only when there is no time for a checkpoint.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections import Counter

from rollart_hpc.files import write_json
from rollart_hpc.roles import start as role_start
from rollart_hpc.roles.start import Start, connect
from rollart_hpc.vocabulary import RunState
from rollart_hpc.wire import keys
from rollart_hpc.wire.hub import Hub
from rollart_hpc.wire.members import Joined, Lost, Members
from rollart_hpc.wire.messages import Drain, Exited, Progress, Stop

SEEN = "seen.json"

log = logging.getLogger("fake")


def behave(start: Start) -> None:
    path = start.run.path / "behaviour.json"
    mine = json.loads(path.read_text()).get(start.name, {}) if path.exists() else {}
    if mine.get("hang"):
        time.sleep(1000)
    if "exit" in mine:
        log.error("told to end\n  -> remove behaviour.json")
        sys.exit(mine["exit"])


def work(start: Start) -> None:
    behave(start)
    link = connect(start, capacity=1)
    while True:
        received = link.recv()
        if received is not None and isinstance(received[0], Stop):
            link.close()
            tidy_up(start)
            return


def tidy_up(start: Start) -> None:
    """As a relay does, when the controller has seen it go."""
    time.sleep(0.2)
    (start.run.path / f"{start.name}.tidy").touch()


def to_score(start: Start) -> int:
    path = start.run.path / "to_score"
    return int(path.read_text()) if path.exists() else 0


def control(start: Start) -> int:
    behave(start)
    hub = Hub("127.0.0.1", keys.load_server(start.run.keys(start.attempt)))
    members = Members(hub, attempt=start.attempt)
    announcement = {"address": f"tcp://127.0.0.1:{hub.port}", "attempt": start.attempt}
    write_json(start.run.controller(start.attempt), announcement)
    assert start.ready_fd is not None
    os.write(start.ready_fd, json.dumps(announcement).encode() + b"\n")
    os.close(start.ready_fd)
    joined: list[list[object]] = []
    exited: list[list[object]] = []
    code = None
    progress = 0
    while code is None:
        for name, message, _ in hub.poll(0.05):
            for change in members.handle(name, message):
                if isinstance(change, Joined):
                    joined.append([change.hello.name, change.hello.attempt])
                assert isinstance(change, Joined | Lost)
            if isinstance(message, Exited):
                exited.append([message.name, message.code])
            if isinstance(message, Drain) and (message.at_once or not (start.run.path / "deaf").exists()):
                code = 5
        members.tick(time.monotonic())
        progress += not (start.run.path / "idle").exists()
        alive = Counter(hello.role for hello in members.alive.values())
        if "supervisor" in members.alive:
            hub.send("supervisor", Progress(RunState.RUNNING, progress, to_score(start), dict(alive)))
        seen = {"attempt": start.attempt, "joined": joined, "exited": exited, "alive": alive}
        write_json(start.run.path / SEEN, {**seen, "started_from": str(start.checkpoint)})
        if (start.run.path / "end").exists():
            code = int((start.run.path / "end").read_text())
    for name in members.alive:
        hub.send(name, Stop("over"))
    deadline = time.monotonic() + 60
    while set(members.alive) - {"supervisor"} and time.monotonic() < deadline:
        for name, message, _ in hub.poll(0.05):
            members.handle(name, message)
    hub.close()
    return code


if __name__ == "__main__":
    role = sys.argv.pop(1)
    role_start.run_role(role, control if role == "controller" else work)  # type: ignore[arg-type]
