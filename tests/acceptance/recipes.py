"""The quickstart's tasks by several recipes: how many steps and seconds until both are solved?

One grid of learning rates for all, and everything else as in the quickstart. Data is of the version that is trained
(lag 0), so recipes for older data show their learning only.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.acceptance.drive import table, write_page
from tests.acceptance.studies import EVERY, GOAL, PLAYS, Case, Found, run_all, stored

STUDY = "recipes"
RECIPES = (
    "grpo", "dr_grpo", "rloo", "reinforce_pp", "lite_ppo", "dapo", "gspo", "cispo", "ppo", "gigpo", "topr", "ipa",
)  # fmt: skip
RATES = (2e-3, 5e-4, 5e-3)
ENTROPY = 0.03  # as the quickstart's: its base model ends up in one answer without


def cases(seeds: list[int]) -> Iterator[Case]:
    """Every recipe at one rate and seed before the next."""
    for seed in seeds:
        for rate in RATES:
            for recipe in RECIPES:
                given = [f"algorithm.recipe={recipe}", f"algorithm.entropy={ENTROPY}", f"trainer.lr={rate}"]
                length = ["algorithm.aggregation_params.length=64"] if recipe == "dr_grpo" else []
                yield Case(f"{recipe} lr={rate:g}", seed, 0, given + length)


def recipes(seeds: list[int], keep: Path, limit_s: float) -> bool:
    found = run_all(STUDY, cases(seeds), keep / "tiny-model", limit_s)
    write(found)
    return all(case.key in found for case in cases(seeds))


def write(found: Found) -> None:
    write_page(STUDY, page(found))


def page(found: Found) -> list[str]:
    rates = [rate for rate in RATES if any(run["name"].endswith(f"lr={rate:g}") for run in found.values())]
    head = ["recipe", *(f"lr {rate:g}" for rate in rates), "seconds at the best", "trainings"]
    rows = [_row(recipe, rates, found) for recipe in RECIPES]
    seeds = sorted({run["seed"] for run in found.values()})
    missing = sum(case.key not in found for case in cases([0, 1, 2]))
    lines = [
        "# Recipes on the quickstart's tasks",
        "",
        f"Steps until greedy success on {PLAYS} held-out seeds is at least {GOAL:g} in both tasks, looked at every",
        f"{EVERY} steps: median over seeds {', '.join(map(str, seeds))}; never = not within 180 steps. Every recipe",
        f"has the same learning rates, tasks, model, batch, schedule and entropy bonus ({ENTROPY:g}). Generation and",
        "training take turns in one process, without overlap (`tests/acceptance/loop.py`); seconds are of both, on one",
        "of 2 shared CPU cores, so they compare recipes only roughly. Measured by:",
        "",
        "```",
        "make acceptance-recipes",
        "```",
        "",
        *table(head, rows),
        "",
        "`dr_grpo` has `aggregation_params.length: 64`. DAPO's dynamic sampling is the flow's and not in this loop.",
        "`recipes.json` has every training with its scores.",
    ]
    if missing:
        lines += ["", f"{missing} of {len(list(cases([0, 1, 2])))} trainings are still to be run (3 seeds, 3 rates)."]
    return lines


def _row(recipe: str, rates: list[float], found: Found) -> list[str]:
    by_rate = [[run for run in found.values() if run["name"] == f"{recipe} lr={rate:g}"] for rate in rates]
    medians = [statistics.median([_steps(run) for run in runs]) if runs else None for runs in by_rate]
    known = [(steps, runs) for steps, runs in zip(medians, by_rate) if steps is not None]
    best = min(known, key=lambda pair: pair[0]) if known else None
    solved = best is not None and best[0] != float("inf")
    seconds = f"{statistics.median(run['seconds'] for run in best[1]):.0f}" if best is not None and solved else "-"
    cells = ["-" if steps is None else "never" if steps == float("inf") else f"{steps:g}" for steps in medians]
    return [f"`{recipe}`", *cells, seconds, str(sum(map(len, by_rate)))]


def _steps(run: dict[str, Any]) -> float:
    return float("inf") if run["reached"] is None else float(run["reached"])


if __name__ == "__main__":
    write(stored(STUDY))
