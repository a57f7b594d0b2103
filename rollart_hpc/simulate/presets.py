"""Workloads by name, and the one that a run file implies. Every figure has its source, or is marked as assumed.

The ROLLART paper gives the turns of its tasks and which of them are heavy in prefill or decoding, but no tokens per
turn and no latencies. `paper` therefore is an assumption, from a prototype's fit to its comparison of GPUs on single
tasks. `paper-informed` also uses two of its absolute times. docs/results/paper.md says what either predicts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rollart_hpc.config.check import nearest
from rollart_hpc.config.schema import RunConfig, TaskConfig
from rollart_hpc.errors import UserError
from rollart_hpc.rundir import RunDir
from rollart_hpc.simulate.fit import fitted
from rollart_hpc.simulate.laws import Law
from rollart_hpc.simulate.workload import Machines, TaskProfile, Workload

_TURNS = "range: table 1 of the paper; mean: assumed"
_ASSUMED = "assumed"
_FITTED = "assumed, from a prototype's fit to the paper's comparison of 2 H800 and 6 H20"

FROZENLAKE = TaskProfile(
    turns=Law(40, 0.5, 20, 100),
    prompt=Law(400),
    observation=Law(150, 0.3),
    answer=Law(60, 0.8),
    reset=Law(0.05, 0.5),
    step=Law(0.02, 0.5),
    reuse=0.0,
    sources={"turns": _TURNS, "reuse": _FITTED, "observation": _FITTED, "answer": _FITTED},
)
WEBSHOP = TaskProfile(
    turns=Law(12, 0.5, 5, 30),
    prompt=Law(800),
    observation=Law(700, 0.5),
    answer=Law(120, 0.6),
    reset=Law(1.0, 0.5),
    step=Law(0.5, 0.7),
    reuse=0.0,
    straggles=0.002,
    straggle_s=30,
    sources={"turns": _TURNS},
)
MATH = TaskProfile(
    turns=Law(2, 0.3, 1, 4),
    prompt=Law(300),
    observation=Law(120, 0.5),
    answer=Law(7000, 0.7),
    step=Law(1.0, 0.8),
    score=Law(4.0, 0.6),
    sources={"turns": "below 5: table 1 of the paper; mean: assumed", "answer": _FITTED},
)
GAME = TaskProfile(
    turns=Law(1),
    prompt=Law(400),
    observation=Law(1),
    answer=Law(6000, 0.7),
    step=Law(0.02, 0.5),
    sources={"turns": "table 1 of the paper", "answer": _FITTED},
)
SWE = TaskProfile(
    turns=Law(38, 0.3, 30, 50),
    prompt=Law(3500),
    observation=Law(450, 0.9),
    answer=Law(220, 0.9),
    reset=Law(34.0, 0.5),
    step=Law(2.0, 1.0),
    score=Law(20.0, 0.7),
    reuse=0.0,
    straggles=0.01,
    straggle_s=150,
    sources={"turns": _TURNS},
)
_STRICT = {"frozenlake": FROZENLAKE, "webshop": WEBSHOP, "math": MATH, "game": GAME, "swe": SWE}
_LONGER = {
    "frozenlake": replace(FROZENLAKE, turns=Law(50, 0.5, 20, 100), observation=Law(300, 0.3), answer=Law(120, 0.8)),
    "webshop": replace(
        WEBSHOP, turns=Law(15, 0.5, 5, 30), observation=Law(1200, 0.5), answer=Law(150, 0.6), reuse=0.95
    ),
    "math": replace(MATH, answer=Law(6000, 0.7)),
    "game": replace(GAME, answer=Law(4000, 0.7)),
    "swe": replace(SWE, answer=Law(150, 0.9), reuse=0.95),
}
_TOLD = "tokens per turn and latencies are assumed: the paper gives only the turns of its tasks"

PRESETS = {
    "paper": Workload("paper", _STRICT, notes=(_TOLD, "prefix reuse 0 for tasks of many turns, as in the comparison")),
    "paper-informed": Workload(
        "paper-informed",
        _LONGER,
        Machines(mfu=0.17),
        notes=(_TOLD, "longer observations, and the trainer's MFU from two absolute times of the paper's text"),
    ),
}


def workload_of(name: str, config: RunConfig) -> Workload:
    """A preset, the directory of a run that is measured, or by default what the run file implies."""
    if not name:
        return implied(config)
    if name in PRESETS:
        return PRESETS[name]
    if Path(name).is_dir():
        return fitted(RunDir(name), config)
    known = ", ".join(PRESETS)
    raise UserError(
        f"--workload {name}: neither a preset nor a directory", f"{nearest(name, list(PRESETS))}; presets: {known}"
    )


def implied(config: RunConfig) -> Workload:
    """By the limits of the run file alone."""
    notes = (
        "nothing is known about the tasks: assumed are half of max_turns, answers of a quarter of max_response_tokens, "
        "100 tokens per observation and 0.05 s per step of an environment; --workload RUN_DIR measures them",
    )
    return Workload("run file", {name: _of_limits(task) for name, task in config.tasks.items()}, notes=notes)


def _of_limits(task: TaskConfig) -> TaskProfile:
    turns = 1.0 if task.max_turns == 1 else max(1.0, task.max_turns / 2)
    return TaskProfile(
        turns=Law(turns, 0.5, 1, task.max_turns),
        prompt=Law(min(300, task.max_tokens // 4)),
        observation=Law(min(100, task.max_tokens // (2 * task.max_turns) + 1)),
        answer=Law(max(2, task.max_response_tokens / 4), 0.7),
    )
