"""What the controller costs at any size. Owns the measurement; the controller is the real one.

A real controller process (hub with CURVE, members, core, journal) serves load workers of another process that talk and
do nothing else (`bench.load`): what is measured is the control plane alone. The run is a whole one. Groups complete,
are scored, trained and committed, and each version is installed on every engine.
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

from rollart_hpc.bench.load import driver, payloads, workers
from rollart_hpc.bench.load.counts import Window
from rollart_hpc.config.resolved import write_resolved
from rollart_hpc.config.schema import (
    CheckpointConfig,
    FlowConfig,
    PoolConfig,
    RunConfig,
    TaskConfig,
    ValidationConfig,
)
from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.rundir import RunDir
from rollart_hpc.wire.keys import make_keys

GROUP_SIZE = 10
# They size the batch. A trainer takes groups as they complete, so versions come as fast as turns do.
NOMINAL_TURNS_PER_S, VERSIONS_PER_WINDOW = 12_000, 7
SHARE_OF_SLOTS = 16  # a batch has at least one trajectory for so many slots
USED_UP = 0.9
ENGINES, SLOTS = 100, 10_000
DEFAULT = ((2, SLOTS), (16, SLOTS), (ENGINES, SLOTS), (500, SLOTS), (2500, SLOTS), (ENGINES, 100), (ENGINES, 1000))
PAYLOAD = (
    f"A turn: {payloads.PROMPT_BYTES} B of prompt to the engine, {payloads.ANSWER_TOKENS} tokens with log-probs and"
    f" versions ({payloads.ANSWER_BYTES} B) back. A trajectory: {payloads.FEWEST_TURNS} to {payloads.MOST_TURNS}"
    f" turns, then transcript and token record, {payloads.RECORD_BYTES} B a turn, for reward and trainer. Groups of"
    f" {GROUP_SIZE}. All of it encrypted (CURVE). Up to {driver.SLOTS_PER_ENV} slots an env worker and"
    f" {driver.SLOTS_PER_REWARD} a reward worker; {driver.ENGINES_PER_NODE} engines and a relay a node. Publishing a"
    f" version, each transfer and each install take {workers.WEIGHTS[0]:.0%} to {workers.WEIGHTS[1]:.0%} of a window."
)


class Row(msgspec.Struct):
    """`turns_per_s` and `cpu_us_per_turn` (of the controller) with all slots asking without pause; `p99_ms` at half
    that rate, for without pause it only says how many slots there are (`p99_saturated_ms`)."""

    engines: int
    slots: int
    workers: int  # sockets
    alpha: int
    batch: int  # trajectories of a step
    turns_per_s: float
    cpu_us_per_turn: float
    p99_ms: float
    p99_saturated_ms: float
    register_s: float
    bound_by: str  # what was used up in the saturated window: see `bound_by`
    saturated: Window
    paced: Window


@dataclass(frozen=True)
class Settings:
    """`sizes`: engines and slots of each row."""

    sizes: tuple[tuple[int, int], ...] = DEFAULT
    seconds: float = 10.0

    def __post_init__(self) -> None:
        if not self.sizes:
            raise UserError("no sizes: nothing would be measured", "name at least one number of engines and slots")
        for engines, slots in self.sizes:
            if engines < 1 or slots < engines:
                what = f"{engines} engines and {slots} slots: not every engine would serve turns"
                raise UserError(what, "take at least one engine, and at least as many slots as engines")
        if self.seconds <= 0:
            raise UserError(f"seconds = {self.seconds}: nothing would be measured", "take more than 0")


def sizes_of(engines: list[int] | None, slots: list[int] | None) -> tuple[tuple[int, int], ...]:
    """Each number of engines with each number of slots; without any, the default table."""
    if not engines and not slots:
        return DEFAULT
    return tuple((num, size) for num in engines or [ENGINES] for size in slots or [SLOTS])


def bench_hub(settings: Settings, say: Callable[[str], None]) -> list[Row]:
    rows = []
    for engines, slots in settings.sizes:
        with tempfile.TemporaryDirectory(prefix="rollart-bench-") as scratch:
            rows.append(_measure(RunDir(Path(scratch) / "run"), engines, slots, settings.seconds))
        row = rows[-1]
        speed = f"{row.turns_per_s:.0f} turns/s, {row.cpu_us_per_turn:.0f} us of the controller's CPU each"
        say(f"  {engines} engines, {slots} slots: {speed}")
    return rows


def flow_of(slots: int, seconds: float) -> FlowConfig:
    """A batch small enough for some versions a window, and a staleness bound that lets trajectories live so long.

    A trajectory lives for slots / batch steps on average, and the longest in a group for half as long again.
    """
    nominal = NOMINAL_TURNS_PER_S * seconds / VERSIONS_PER_WINDOW / payloads.MEAN_TURNS
    groups = -(-max(int(nominal), slots // SHARE_OF_SLOTS) // GROUP_SIZE)
    alpha = max(1, -(-2 * slots // (groups * GROUP_SIZE)))
    return FlowConfig(alpha=alpha, groups_per_step=groups, group_size=GROUP_SIZE)


def _configure(run: RunDir, flow: FlowConfig, engines: int) -> None:
    run.create()
    make_keys(run.keys(run.begin_attempt()))
    config = RunConfig(name="bench-hub", steps=1_000_000, tasks={"load": TaskConfig(name="load")}, flow=flow)
    config.pools = {"compute": PoolConfig(engines)}
    config.validation = ValidationConfig(plays=0)
    config.checkpoint = CheckpointConfig(every=0)
    write_resolved(run.config, config)


def _measure(run: RunDir, engines: int, slots: int, seconds: float) -> Row:
    flow = flow_of(slots, seconds)
    _configure(run, flow, engines)
    with _controller(run) as (pid, address):
        plan = driver.LoadPlan(str(run.path), address, pid, engines, slots, seconds)
        command = [sys.executable, "-m", "rollart_hpc.bench.load", msgspec.json.encode(plan).decode()]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        log = (run.path / "controller.log").read_text()[-2000:]
        raise SiteError(f"{engines} engines, {slots} slots: {done.stderr.strip()[-2000:]}\ncontroller: {log}")
    return _row(engines, slots, flow, msgspec.json.decode(done.stdout, type=driver.LoadFigures))


def _row(engines: int, slots: int, flow: FlowConfig, told: driver.LoadFigures) -> Row:
    full, half = told.saturated, told.paced
    return Row(
        engines=engines,
        slots=slots,
        workers=told.workers,
        alpha=flow.alpha,
        batch=flow.groups_per_step * flow.group_size,
        turns_per_s=full.turns_per_s,
        cpu_us_per_turn=full.controller.us_per_turn,
        p99_ms=half.p99_ms,
        p99_saturated_ms=full.p99_ms,
        register_s=told.register_s,
        bound_by=bound_by(full),
        saturated=full,
        paced=half,
    )


def bound_by(window: Window) -> str:
    """The Python thread that had no rest; or all cores; or none of these: it waited for something else."""
    if max(window.controller.main_share, window.load.main_share) >= USED_UP:
        return "controller" if window.controller.main_share >= window.load.main_share else "load"
    cores = len(os.sched_getaffinity(0))
    return "cores" if window.controller.share + window.load.share >= USED_UP * cores else "-"


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
    head = f"{'engines':>8}{'slots':>8}{'workers':>9}{'register':>10}{'turns/s':>9}{'CPU/turn':>10}{'p99 half':>10}"
    lines = [PAYLOAD, f"{head}{'p99 full':>10}{'versions':>9}{'groups':>8}{'turns an engine':>17}{'bound by':>12}"]
    for row in rows:
        full = row.saturated
        share = f"{full.fewest_turns}-{full.most_turns}"
        lines.append(
            f"{row.engines:>8}{row.slots:>8}{row.workers:>9}{row.register_s:>8.1f} s{row.turns_per_s:>9.0f}"
            f"{row.cpu_us_per_turn:>7.0f} us{row.p99_ms:>7.1f} ms{row.p99_saturated_ms:>7.0f} ms{full.versions:>9}"
            f"{full.groups:>8}{share:>17}{row.bound_by:>12}"
        )
    return "\n".join(lines)


def as_json(settings: Settings, rows: list[Row]) -> str:
    content = {"bench": "hub", "payload": PAYLOAD, "seconds": settings.seconds, "rows": rows}
    return msgspec.json.format(msgspec.json.encode(content)).decode()
