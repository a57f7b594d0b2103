"""A machine that refuses another process: told once on the screen, tried again with growing pauses."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.launch import supervisor as supervisor_module
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.process import CantStart, Order, start_child
from rollart_hpc.launch.restarts import delay_s
from rollart_hpc.launch.supervisor import Supervisor
from rollart_hpc.observe.status import Status
from rollart_hpc.processes import room
from rollart_hpc.rundir import RunDir


class Said:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def show(self, status: Status) -> None: ...


def refuse(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def test_no_memory_for_a_process_is_told_once_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, config, said = RunDir(tmp_path / "run"), RunConfig(), Said()
    run.create()
    run.begin_attempt()
    plan = make_plan(config)
    monkeypatch.setattr(subprocess, "Popen", refuse)
    proc = plan.of("env")[0]
    (tmp_path / "log").touch()
    with pytest.raises(CantStart, match="Cannot allocate memory") as error:
        start_child(Order(proc, 1, tmp_path / "log"), ["true"], {})
    assert "no memory left" in error.value.fix
    watched = Supervisor(run, config, plan, said)
    watched._crew.attempt = 1
    waits: list[float] = []
    monkeypatch.setattr(watched._timers, "after", lambda delay_s, _: waits.append(delay_s))
    for _ in range(4):
        watched._starter.start(proc)
    assert len(said.lines) == 1 and "can't start env-0: Cannot allocate memory" in said.lines[0]
    assert waits == [delay_s(count) for count in (1, 2, 3, 4)]


def test_a_machine_that_runs_out_of_memory_or_disk_is_told_at_the_next_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, config, said = RunDir(tmp_path / "run"), RunConfig(), Said()
    run.create()
    run.begin_attempt()
    watched = Supervisor(run, config, make_plan(config), said)
    watched._tick(0.0)
    before = len(said.lines)
    monkeypatch.setattr(room, "memory", lambda: room.Room(1 << 20, 64 << 30))
    monkeypatch.setattr(room, "disk", lambda path: room.Room(0, 1 << 40))
    watched = Supervisor(run, config, make_plan(config), said)
    watched._tick(0.0)
    watched._tick(1.0)
    told = [line for line in said.lines[before:] if " full: " in line]
    assert [line.split(":")[1].split(" is ")[0].strip() for line in told][:2] == [f"the disk of {run.path}", "memory"]
    assert all(" -> " in line for line in told), "what to do"
    assert supervisor_module.TICK_S <= 2
