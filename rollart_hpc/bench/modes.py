"""Compares the modes under injected environment latency, in real runs.

For each standard deviation of the turn latency N(mean, std) the modes take turns, so that noise of the machine affects
all equally. The time per optimizer step is compared, without the start-up and the first step.
"""

from __future__ import annotations

import math
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rollart_hpc.config.modes import Mode
from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.observe import metrics
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import LineKind

RUN = "bench-modes"


@dataclass
class Row:
    """One standard deviation of the latency: seconds per step of each mode, and the speed-ups."""

    std_s: float
    step_s: dict[str, float]

    @property
    def speedup_over_sync(self) -> dict[str, float]:
        return {mode: self.step_s[Mode.SYNC] / seconds for mode, seconds in self.step_s.items()}

    @property
    def trajectory_over_batched(self) -> float:
        """The gain of sync_plus over sync, which differ only in that no trajectory of sync_plus waits for another."""
        return self.step_s[Mode.SYNC] / self.step_s[Mode.SYNC_PLUS]

    def as_dict(self) -> dict[str, object]:
        return {
            "std_s": self.std_s,
            "step_s": self.step_s,
            "speedup_over_sync": self.speedup_over_sync,
            "trajectory_over_batched": self.trajectory_over_batched,
        }


@dataclass(frozen=True)
class Settings:
    mean_s: float = 0.3
    stds_s: tuple[float, ...] = (0.03, 0.15, 0.3)
    steps: int = 6
    repeats: int = 1
    model: Path | None = None  # base model; None: a tiny one is made once for all runs

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise UserError(f"steps = {self.steps}: the first step of a run does not count", "use at least 2 steps")
        if self.repeats < 1:
            raise UserError(f"repeats = {self.repeats}: nothing would run", "use at least 1")
        if not self.stds_s:
            raise UserError("no standard deviation to compare", "give at least one, e.g. --std 0.1")
        for latency_s in (self.mean_s, *self.stds_s):
            if not 0 <= latency_s < math.inf:
                raise UserError(f"a latency of {latency_s} s can't be injected", "use 0 or more seconds")


def bench_modes(settings: Settings, say: Callable[[str], None]) -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="rollart-bench-") as scratch:
        root = Path(scratch)
        model = settings.model or _make_model(root, say)
        return [_bench_spread(settings, std_s, root, model, say) for std_s in settings.stds_s]


def _bench_spread(settings: Settings, std_s: float, root: Path, model: Path, say: Callable[[str], None]) -> Row:
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for repeat in range(settings.repeats):
        for mode in Mode:
            run_dir = root / f"{mode}-{std_s:g}-{repeat}"
            overrides = [f"mode={mode}", f"steps={settings.steps}", f"seed={repeat}"]
            overrides += ["model.kind=directory", f"model.path={model}", *_latency(settings.mean_s, std_s)]
            _run(run_dir, overrides)
            seconds[mode].append(_step_s(run_dir))
            say(f"  N({settings.mean_s:g}, {std_s:g}) s  {mode:<10} {seconds[mode][-1]:7.2f} s per step")
    return Row(std_s, {mode: statistics.median(values) for mode, values in seconds.items()})


def _make_model(root: Path, say: Callable[[str], None]) -> Path:
    """A run of 0 steps makes the base model for all other runs."""
    say("  making the base model once for all runs")
    _run(root / "model-maker", ["steps=0", "validation.plays=0"])
    return RunDir(root / "model-maker").model


def _latency(mean_s: float, std_s: float) -> list[str]:
    return [
        f"tasks.{task}.trouble.turn_latency.{key}={value}"
        for task in ("frozenlake", "sorting")
        for key, value in (("mean_s", mean_s), ("std_s", std_s))
    ]


def _step_s(run_dir: Path) -> float:
    times = [line["time_s"] for line in metrics.of_kind(metrics.read(RunDir(run_dir).metrics), LineKind.STEP)]
    return float((times[-1] - times[0]) / (len(times) - 1))


def _run(run_dir: Path, overrides: list[str]) -> None:
    command = [sys.executable, "-m", "rollart_hpc.cli", "run", RUN, "--quiet", "--run-dir", str(run_dir), *overrides]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SiteError(f"a run of the benchmark failed: {done.stderr.strip()[-2000:]}", f"see its logs in {run_dir}")


def table(rows: list[Row]) -> str:
    """Speed-up over sync, one line per standard deviation."""
    head = f"{'latency std':>12}" + "".join(f"{mode:>12}" for mode in Mode) + f"{'traj/batched':>14}"
    lines = [head]
    for row in rows:
        gains = "".join(f"{row.speedup_over_sync[mode]:>11.2f}x" for mode in Mode)
        lines.append(f"{row.std_s:>10.2f} s{gains}{row.trajectory_over_batched:>13.2f}x")
    return "\n".join(lines)


def as_json(settings: Settings, rows: list[Row]) -> str:
    content = {"bench": "modes", "mean_s": settings.mean_s, "rows": [row.as_dict() for row in rows]}
    return msgspec.json.format(msgspec.json.encode(content)).decode()
