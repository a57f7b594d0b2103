"""A workload measured on runs of mode sync, against real runs of all modes. Writes docs/results/predicts.md."""

from __future__ import annotations

import json
import os
import statistics
from dataclasses import replace
from pathlib import Path

from rollart_hpc.config.load import load_all
from rollart_hpc.config.modes import Mode
from rollart_hpc.observe import metrics
from rollart_hpc.rundir import RunDir
from rollart_hpc.simulate.build import Case
from rollart_hpc.simulate.figures import simulate
from rollart_hpc.simulate.fit import fitted
from tests.acceptance.drive import RESULTS, table, train, write_page

SEEDS, STEPS, WARM_UP = (0, 1, 2), 10, 1
MEAN_S, STD_S = 0.3, 0.15
GOAL = 0.15


def predicts(keep: Path) -> bool:
    """The modes take turns, so that noise of the machine affects all equally."""
    model = keep / "model-maker"
    train("bench-modes", model, "steps=0", "validation.plays=0")
    real: dict[str, list[float]] = {str(mode): [] for mode in Mode}
    for seed in SEEDS:
        for mode in Mode:
            done = train("bench-modes", keep / f"{mode}-{seed}", *_overrides(mode, seed, RunDir(model).model))
            if done.code:
                return False
            real[mode].append(_step_s(done.run_dir))
    predicted = {str(mode): [_predicted(keep, mode, seed) for seed in SEEDS] for mode in Mode}
    (RESULTS / "predicts.json").write_text(json.dumps({"real": real, "predicted": predicted}, indent=1) + "\n")
    errors = {mode: statistics.fmean(predicted[mode]) / statistics.fmean(real[mode]) - 1 for mode in real}
    write_page("predicts", _page(real, predicted, errors))
    return all(abs(error) <= GOAL for mode, error in errors.items() if mode != Mode.SYNC)


def _overrides(mode: str, seed: int, model: Path) -> list[str]:
    latency = [
        f"tasks.{task}.trouble.turn_latency.{key}={value}"
        for task in ("frozenlake", "sorting")
        for key, value in (("mean_s", MEAN_S), ("std_s", STD_S))
    ]
    steps = WARM_UP + STEPS
    return [f"mode={mode}", f"seed={seed}", f"steps={steps}", "model.kind=directory", f"model.path={model}", *latency]


def _step_s(run_dir: Path) -> float:
    times = [line["time_s"] for line in metrics.surviving_steps(metrics.read(RunDir(run_dir).metrics))]
    return float((times[-1] - times[WARM_UP - 1]) / (len(times) - WARM_UP))


def _predicted(keep: Path, mode: str, seed: int) -> float:
    """By the traces of the run of mode sync with this seed."""
    measured = RunDir(keep / f"{Mode.SYNC}-{seed}")
    loaded = load_all("bench-modes", _overrides(mode, seed, RunDir(keep / "model-maker").model))
    case = Case(replace(loaded.config), loaded.site, fitted(measured, loaded.config), None)
    return simulate(case, steps=STEPS, warm_up=WARM_UP)[0].step_s


def _page(real: dict[str, list[float]], predicted: dict[str, list[float]], errors: dict[str, float]) -> list[str]:
    load = os.getloadavg()[2] / (os.cpu_count() or 1)
    rows = [[mode, _spread(real[mode]), _spread(predicted[mode]), f"{errors[mode]:+.0%}"] for mode in real]
    return [
        "# Predicted and real times per step",
        "",
        f"Real runs of `bench-modes` with turns of N({MEAN_S:g}, {STD_S:g}) s, {len(SEEDS)} seeds of {STEPS} steps",
        f"after {WARM_UP} that does not count, the modes in turn. The simulator saw the traces of the runs of mode",
        f"`sync` only. The goal is {GOAL:.0%}. {os.cpu_count()} cores, {load:.1f} processes per core in the last 15",
        "minutes. Printed by:",
        "",
        "```",
        "make acceptance-predicts",
        "```",
        "",
        *table(["mode", "real, s per step", "predicted", "error"], rows),
        "",
        "`predicts.json` has every seed.",
    ]


def _spread(values: list[float]) -> str:
    return f"{statistics.fmean(values):.2f} ± {(max(values) - min(values)) / 2:.2f}"
