"""The quickstart over seeds: does it learn, and in time?"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.acceptance.drive import table, train, write_page

FIRST_BELOW, LAST_ABOVE, LIMIT_S, BASE_MODEL_LIMIT_S = 0.3, 0.75, 600, 60


@dataclass
class Result:
    """One seed of the quickstart."""

    seed: int
    code: int
    seconds: float
    base_model_s: float | None  # None: not told, so not made
    status: dict[str, Any]  # of a run that finished

    @property
    def passed(self) -> bool:
        return (
            self.code == 0
            and self.seconds <= LIMIT_S
            and self.base_model_s is not None
            and self.base_model_s <= BASE_MODEL_LIMIT_S
            and all(
                task["score_first"] < FIRST_BELOW and task["score_last"] > LAST_ABOVE
                for task in self.status["tasks"].values()
            )
        )

    def row(self, tasks: list[str]) -> list[str]:
        base_model = "-" if self.base_model_s is None else f"{self.base_model_s:g} s"
        times = [base_model, f"{self.seconds:.0f} s"]
        if self.code:
            return [str(self.seed), *["-"] * 2 * len(tasks), *times, "-", f"failed (exit code {self.code})"]
        scores = [f"{self.status['tasks'][name][key]:.2f}" for name in tasks for key in ("score_first", "score_last")]
        staleness = str(self.status["staleness"]["max_trained"])
        return [str(self.seed), *scores, *times, staleness, "yes" if self.passed else "no"]


def run_seed(seed: int, run_dir: Path) -> Result:
    trained = train("quickstart", run_dir, f"seed={seed}")
    told = re.search(r"base model made in (\d+(?:\.\d+)?) s", trained.output)
    return Result(seed, trained.code, trained.seconds, float(told[1]) if told else None, trained.status)


def quickstart(seeds: list[int], keep: Path) -> bool:
    results: list[Result] = []
    for seed in seeds:
        results.append(run_seed(seed, keep / f"seed-{seed}"))
        write_quickstart(results)
    passed = sum(result.passed for result in results)
    print(f"{passed} of {len(seeds)} seeds passed")
    return passed >= min(len(seeds), 4)


def write_quickstart(results: list[Result]) -> None:
    tasks = next((list(result.status["tasks"]) for result in results if result.status), [])
    scores = [f"{task} {when}" for task in tasks for when in ("first", "last")]
    head = ["seed", *scores, "base model", "whole run", "max staleness", "passed"]
    lines = [
        "# Quickstart over seeds",
        "",
        "Greedy success on 128 validation plays per task, on held-out seeds, before the first and after the last step.",
        f"A seed passes if every task rises from below {FIRST_BELOW} to above {LAST_ABOVE}, the base model takes",
        f"at most {BASE_MODEL_LIMIT_S} s and the whole run, with base model and validations, at most {LIMIT_S} s.",
        "Measured on 2 shared CPU cores by:",
        "",
        "```",
        "python tests/acceptance/run.py quickstart",
        "```",
        "",
        *table(head, [result.row(tasks) for result in results]),
        "",
        "On FrozenLake a held-out seed is not always an unseen map: there are few 4x4 maps, and most validation maps",
        "also occur in training. `sorting` has 151,200 questions, so nearly all of its held-out ones are new.",
        "",
        "A seed fixes what is played but not which trajectory finishes first: another run of the same seed may end a",
        "few hundredths higher or lower.",
    ]
    write_page("quickstart", lines)
