"""Counts what happens in a window and reports it. Owns percentiles and CPU clocks."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec


@dataclass
class Counts:
    """What has happened in the window so far."""

    turns: Counter[str] = field(default_factory=Counter)  # by engine
    installs: Counter[str] = field(default_factory=Counter)  # by engine
    latencies_s: list[float] = field(default_factory=list)
    scores: int = 0
    groups: int = 0  # trained
    commits: int = 0
    cancelled: int = 0  # trajectories

    def clear(self) -> None:
        vars(self).update(vars(Counts()))


class Cpu(msgspec.Struct):
    """User and system time, in CPU seconds per second and in microseconds per turn."""

    share: float  # of all threads
    main_share: float  # of the main thread, which runs Python
    us_per_turn: float


class Window(msgspec.Struct):
    seconds: float
    turns_per_s: float
    p50_ms: float
    p99_ms: float
    controller: Cpu
    load: Cpu
    fewest_turns: int  # minimum over engines
    most_turns: int
    fewest_installs: int  # minimum over engines
    installs: int
    versions: int  # committed
    groups: int  # trained
    scores: int
    cancelled: int  # trajectories
    busy: float  # mean share of the slots that hold a trajectory


def window_of(counts: Counts, served: list[int], took_s: float, controller: Cpu, load: Cpu, busy: float) -> Window:
    latencies = sorted(counts.latencies_s)
    return Window(
        seconds=took_s,
        turns_per_s=len(latencies) / took_s,
        p50_ms=1000 * latencies[len(latencies) // 2],
        p99_ms=1000 * latencies[int(0.99 * (len(latencies) - 1))],
        controller=controller,
        load=load,
        fewest_turns=min(served),
        most_turns=max(served),
        fewest_installs=min(counts.installs.values()),
        installs=counts.installs.total(),
        versions=counts.commits,
        groups=counts.groups,
        scores=counts.scores,
        cancelled=counts.cancelled,
        busy=busy,
    )


class CpuClock:
    """Measures the CPU time of a process from now on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._began_s, self._before = time.monotonic(), self._read()

    def cpu(self, turns: int) -> Cpu:
        took_s = time.monotonic() - self._began_s
        process_s, main_s = (now - before for now, before in zip(self._read(), self._before, strict=True))
        return Cpu(process_s / took_s, main_s / took_s, 1e6 * process_s / turns)

    def _read(self) -> tuple[float, float]:
        return _cpu_s(Path(f"/proc/{self._pid}/stat")), _cpu_s(Path(f"/proc/{self._pid}/task/{self._pid}/stat"))


def _cpu_s(stat: Path) -> float:
    fields = stat.read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
