"""A real LLM on a real task: SmolLM2-135M learns to follow instructions, on CPU. Is it better than before?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rollart_hpc.observe.metrics import read, surviving_steps, surviving_validations
from rollart_hpc.observe.paired import Paired, paired
from tests.acceptance.drive import Trained, rollart, table, train, write_page

TASK = "instructions"
LEVELS = "▁▂▃▄▅▆▇█"


def smollm2(keep: Path) -> bool:
    model = model_directory(keep)
    trained = train("smollm2", keep / "smollm2", f"model.path={model}", "validation.every=20")
    if trained.code:
        print(f"the run failed: exit code {trained.code}")
        return False
    write_page("smollm2", page(trained))
    change = _change(trained.run_dir, "reward")
    return change.difference > 0 and change.is_significant


def model_directory(keep: Path) -> Path:
    """Made once."""
    model = keep / "smollm2-model"
    if not model.exists():
        rollart("model", "smollm2", str(model))
    return model


def page(trained: Trained, command: str = "python tests/acceptance/run.py smollm2") -> list[str]:
    lines = read(trained.run_dir / "metrics.jsonl")
    steps, validations = surviving_steps(lines), surviving_validations(lines)
    rows = [
        [name, f"{change.before:.3f}", f"{change.after:.3f}", f"{change.difference:+.3f}",
         f"{change.standard_error:.3f}", f"{change.difference / max(change.standard_error, 1e-9):.1f}"]
        for name in ("reward", "success")
        for change in [_change(trained.run_dir, name)]
    ]  # fmt: skip
    plays = _change(trained.run_dir, "reward").plays
    head = ["", "before", "after", "paired difference", "standard error", "ratio"]
    return [
        "# SmolLM2-135M-Instruct learns to follow instructions",
        "",
        f"{len(steps)} GRPO steps on the task `{TASK}` with the settings of `configs/runs/smollm2.yaml`, on 2 shared",
        f"CPU cores in {trained.seconds / 60:.0f} minutes, including start and validations. Every validation plays the",
        f"same {plays} held-out instructions, greedily; scores are compared prompt by prompt. Success means that the",
        "answer is exactly the requested list. Measured by:",
        "",
        "```",
        command,
        "```",
        "",
        *table(head, rows),
        "",
        "Validation:",
        "",
        *table(["policy version", "reward", "success"], [_row(line) for line in validations]),
        "",
        f"Training reward by step (mean of the {_trajectories(steps)} sampled trajectories of each step):",
        "",
        "```",
        *curve([step["reward"][TASK] for step in steps]),
        "```",
    ]


def curve(values: list[float]) -> list[str]:
    """A line of blocks, scaled from the lowest to the highest value."""
    low, high = min(values), max(values)
    scale = (len(LEVELS) - 1) / (high - low) if high > low else 0.0
    blocks = "".join(LEVELS[round((value - low) * scale)] for value in values)
    return [blocks, f"first {values[0]:.3f}, last {values[-1]:.3f}, lowest {low:.3f}, highest {high:.3f}"]


def _change(run_dir: Path, key: str) -> Paired:
    lines = [line for line in surviving_validations(read(run_dir / "metrics.jsonl")) if line["task"] == TASK]
    change = paired(lines[0], lines[-1], key)
    assert change is not None, "both validations play the same seeds"
    return change


def _row(line: dict[str, Any]) -> list[str]:
    return [str(line["version"]), f"{line['reward']:.3f}", f"{line['success']:.3f}"]


def _trajectories(steps: list[dict[str, Any]]) -> int:
    return int(steps[0]["metrics"]["trajectories"])
