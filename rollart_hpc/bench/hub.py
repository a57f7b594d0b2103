"""Measures the cost of the controller as the cluster grows. Owns the measurement; the controller is the real one.

A real controller process (hub with CURVE, members, core, journal) serves simulated workers in another process
(`bench.load`). They exchange messages and do no work, so only the control plane is measured. The run is complete:
groups are finished, scored, trained and committed, and every engine installs each version.
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
from rollart_hpc.processes.memory import huge_pages
from rollart_hpc.rundir import RunDir
from rollart_hpc.wire.keys import make_keys

GROUP_SIZE = 10
# These set the batch size. The trainer takes groups as they complete, so the rate of turns sets the rate of versions.
NOMINAL_TURNS_PER_S, VERSIONS_PER_WINDOW = 12_000, 7
SHARE_OF_SLOTS = 16  # a batch has at least one trajectory per this many slots
USED_UP = 0.9
ENGINES, SLOTS = 100, 10_000
DEFAULT = ((2, SLOTS), (16, SLOTS), (ENGINES, SLOTS), (500, SLOTS), (2500, SLOTS), (ENGINES, 100), (ENGINES, 1000))
PAYLOAD = (
    f"Each turn sends a prompt of {payloads.PROMPT_BYTES} B to the engine and returns {payloads.ANSWER_TOKENS} tokens"
    f" with log-probs and versions ({payloads.ANSWER_BYTES} B). Each trajectory has {payloads.FEWEST_TURNS} to"
    f" {payloads.MOST_TURNS} turns, then sends its transcript and token record ({payloads.RECORD_BYTES} B per turn) to"
    f" reward and trainer. Groups have {GROUP_SIZE} trajectories. All traffic is encrypted (CURVE). An env worker has"
    f" up to {driver.SLOTS_PER_ENV} slots, a reward worker {driver.SLOTS_PER_REWARD}. Each node has up to"
    f" {driver.ENGINES_PER_NODE} engines and a relay. Publishing a version, each transfer and each install take"
    f" {workers.WEIGHTS[0]:.0%} to {workers.WEIGHTS[1]:.0%} of a window."
)


class Row(msgspec.Struct):
    """`turns_per_s` and `cpu_us_per_turn` (of the controller) are measured with every slot asking without a pause.
    `p99_ms` is measured at half that rate: at full rate (`p99_saturated_ms`) it only reflects the number of slots."""

    engines: int
    slots: int
    workers: int  # sockets
    alpha: int
    batch: int  # trajectories per step
    turns_per_s: float
    cpu_us_per_turn: float
    p99_ms: float
    p99_saturated_ms: float
    register_s: float
    bound_by: str  # the bottleneck in the saturated window: see `bound_by`
    saturated: Window
    paced: Window


@dataclass(frozen=True)
class Settings:
    """`sizes` are the engines and slots of each row."""

    sizes: tuple[tuple[int, int], ...] = DEFAULT
    seconds: float = 15.0
    transcripts: bool = True

    def __post_init__(self) -> None:
        if not self.sizes:
            raise UserError("there is no size to measure", "give at least one number of engines and one of slots")
        for engines, slots in self.sizes:
            if engines < 1 or slots < engines:
                what = f"{engines} engines and {slots} slots: some engines would get no turns"
                raise UserError(what, "use at least one engine, and at least as many slots as engines")
        if self.seconds <= 0:
            raise UserError(f"seconds = {self.seconds} is too short to measure anything", "use more than 0")


def sizes_of(engines: list[int] | None, slots: list[int] | None) -> tuple[tuple[int, int], ...]:
    """Every combination of engines and slots. Without either, the default sizes."""
    if not engines and not slots:
        return DEFAULT
    return tuple((num, size) for num in engines or [ENGINES] for size in slots or [SLOTS])


def bench_hub(settings: Settings, say: Callable[[str], None]) -> list[Row]:
    rows = []
    for engines, slots in settings.sizes:
        with tempfile.TemporaryDirectory(prefix="rollart-bench-") as scratch:
            rows.append(_measure(RunDir(Path(scratch) / "run"), engines, slots, settings))
        row = rows[-1]
        speed = f"{row.turns_per_s:.0f} turns/s, {row.cpu_us_per_turn:.0f} us of controller CPU per turn"
        say(f"  {engines} engines, {slots} slots: {speed}")
    return rows


def flow_of(slots: int, seconds: float) -> FlowConfig:
    """A batch small enough for several versions per window, and a staleness bound that drops no trajectory.

    A trajectory lasts slots / batch steps on average. The longest one in a group lasts half as long again.
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


def _measure(run: RunDir, engines: int, slots: int, settings: Settings) -> Row:
    seconds = settings.seconds
    flow = flow_of(slots, seconds)
    _configure(run, flow, engines)
    with _controller(run) as (pid, address):
        plan = driver.LoadPlan(
            str(run.path), address, pid, engines, slots, seconds, flow.alpha + 1, settings.transcripts
        )
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
    """The bottleneck: the Python thread that was never idle, or all cores, or `-` if it was neither."""
    if max(window.controller.main_share, window.load.main_share) >= USED_UP:
        return "controller" if window.controller.main_share >= window.load.main_share else "load"
    cores = len(os.sched_getaffinity(0))
    return "cores" if window.controller.share + window.load.share >= USED_UP * cores else "-"


@contextmanager
def _controller(run: RunDir) -> Iterator[tuple[int, str]]:
    ready, write = os.pipe()
    command = [sys.executable, "-m", "rollart_hpc.roles.controller", "--run-dir", str(run.path), "--attempt", "1"]
    with open(run.path / "controller.log", "wb") as log:
        process = subprocess.Popen(
            [*command, "--ready-fd", str(write)],
            pass_fds=(write,),
            stdout=log,
            stderr=log,
            env=os.environ | huge_pages(),
        )
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
    lines = [PAYLOAD, f"{head}{'p99 full':>10}{'versions':>9}{'groups':>8}{'turns per engine':>18}{'bound by':>12}"]
    for row in rows:
        full = row.saturated
        share = f"{full.fewest_turns}-{full.most_turns}"
        lines.append(
            f"{row.engines:>8}{row.slots:>8}{row.workers:>9}{row.register_s:>8.1f} s{row.turns_per_s:>9.0f}"
            f"{row.cpu_us_per_turn:>7.0f} us{row.p99_ms:>7.1f} ms{row.p99_saturated_ms:>7.0f} ms{full.versions:>9}"
            f"{full.groups:>8}{share:>18}{row.bound_by:>12}"
        )
    return "\n".join(lines)


def as_json(settings: Settings, rows: list[Row]) -> str:
    content = {
        "bench": "hub",
        "payload": PAYLOAD,
        "seconds": settings.seconds,
        "transcripts": settings.transcripts,
        "rows": rows,
    }
    return msgspec.json.format(msgspec.json.encode(content)).decode()
