"""How many turns a second the controller forwards. Owns the measurement; the controller is the real one.

A real controller process (hub with CURVE, members, core, journal) serves load workers of another process that talk and
do nothing else (`bench.load`), so what is measured is the control plane alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rollart_hpc.bench.load import ANSWER_TOKENS, PROMPT_BYTES, SLOTS_PER_SOCKET
from rollart_hpc.config.resolved import write_resolved
from rollart_hpc.config.schema import FlowConfig, RunConfig, TaskConfig, ValidationConfig, WeightsConfig
from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.rundir import RunDir
from rollart_hpc.wire.keys import make_keys

GROUP_SIZE = 10
PAYLOAD = (
    f"{PROMPT_BYTES} B of prompt to the engine, {ANSWER_TOKENS} tokens with log-probs and versions "
    f"({12 * ANSWER_TOKENS} B) back; CURVE; up to {SLOTS_PER_SOCKET} slots a socket"
)


class Row(msgspec.Struct):
    """`turns_per_s` and `cpu_us_per_turn` (of the controller) with all slots asking without pause; `p99_ms` at half
    that rate, for without pause it only says how many slots there are (`p99_saturated_ms`)."""

    slots: int
    sockets: int
    turns_per_s: float
    p99_ms: float
    cpu_us_per_turn: float
    p99_saturated_ms: float


@dataclass(frozen=True)
class Settings:
    slots: tuple[int, ...] = (10, 100, 1000, 10_000)
    seconds: float = 5.0

    def __post_init__(self) -> None:
        if not self.slots or min(self.slots) < GROUP_SIZE or any(slots % GROUP_SIZE for slots in self.slots):
            raise UserError(f"slots = {self.slots}: can't be measured", f"take multiples of {GROUP_SIZE}")
        if self.seconds <= 0:
            raise UserError(f"seconds = {self.seconds}: nothing would be measured", "take more than 0")


def bench_hub(settings: Settings, say: Callable[[str], None]) -> list[Row]:
    rows = []
    for slots in settings.slots:
        with tempfile.TemporaryDirectory(prefix="rollart-bench-") as scratch:
            rows.append(_measure(RunDir(Path(scratch) / "run"), slots, settings.seconds))
        say(f"  {slots:>6} slots  {rows[-1].turns_per_s:8.0f} turns/s")
    return rows


def _measure(run: RunDir, slots: int, seconds: float) -> Row:
    run.create()
    make_keys(run.keys(run.begin_attempt()))
    flow = FlowConfig(alpha=0, groups_per_step=slots // GROUP_SIZE, group_size=GROUP_SIZE)
    config = RunConfig(name="bench-hub", tasks={"load": TaskConfig(name="load")}, flow=flow)
    config.validation = ValidationConfig(plays=0)
    config.weights = WeightsConfig(transport="direct")
    write_resolved(run.config, config)
    with _controller(run) as (pid, address):
        command = [sys.executable, "-m", "rollart_hpc.bench.load", str(run.path), address, str(slots), str(seconds)]
        done = subprocess.run([*command, str(pid)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SiteError(f"the load of {slots} slots failed: {done.stderr.strip()[-2000:]}")
    told = json.loads(done.stdout)
    saturated, paced = told["saturated"], told["paced"]
    return Row(
        slots, told["sockets"], saturated["turns_per_s"], paced["p99_ms"], saturated["cpu_us_per_turn"],
        saturated["p99_ms"],
    )  # fmt: skip


@contextmanager
def _controller(run: RunDir) -> Iterator[tuple[int, str]]:
    ready, write = os.pipe()
    command = [sys.executable, "-m", "rollart_hpc.roles.controller", "--run-dir", str(run.path), "--attempt", "1"]
    with open(run.path / "controller.log", "wb") as log:
        process = subprocess.Popen([*command, "--ready-fd", str(write)], pass_fds=(write,), stdout=log, stderr=log)
    os.close(write)
    try:
        line = os.read(ready, 4096)
        if not line:
            raise SiteError(f"the controller did not start: {(run.path / 'controller.log').read_text()[-2000:]}")
        yield process.pid, json.loads(line)["address"]
    finally:
        os.close(ready)
        process.kill()
        process.wait()


def table(rows: list[Row]) -> str:
    lines = [PAYLOAD, f"{'slots':>8}{'sockets':>9}{'turns/s':>10}{'p99 at half':>13}{'CPU of controller':>19}"]
    for row in rows:
        lines.append(
            f"{row.slots:>8}{row.sockets:>9}{row.turns_per_s:>10.0f}{row.p99_ms:>10.1f} ms"
            f"{row.cpu_us_per_turn:>13.0f} us/turn"
        )
    return "\n".join(lines)


def as_json(settings: Settings, rows: list[Row]) -> str:
    content = {"bench": "hub", "payload": PAYLOAD, "seconds": settings.seconds, "rows": rows}
    return msgspec.json.format(msgspec.json.encode(content)).decode()
