"""How old may tokens be, and what does a correction buy? The lag is enforced: every token has that age in versions."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.acceptance.drive import table, write_page
from tests.acceptance.studies import EVERY, GOAL, PLAYS, Case, Found, run_all, stored

STUDY = "off-policy"
LAGS = (0, 1, 2, 4, 8)
ARMS = {
    "none": ("nothing: old tokens count like new ones", ["algorithm.decoupled=true", "algorithm.corrections.none={}"]),
    "token": ("`decoupled: true`: weight of each token, at most 2", ["algorithm.decoupled=true"]),
    "mask": (
        "`decoupled: true`, tokens whose weight is not in 0.5 to 2 left out",
        ["algorithm.decoupled=true", "algorithm.corrections.token={low: 0.5, high: 2, how: mask}"],
    ),
    "clip": ("ratios to the log-probs at sampling, clipped (the default)", []),
}


def cases(seeds: list[int]) -> Iterator[Case]:
    """A whole picture of one seed before the next, its extremes first."""
    for seed in seeds:
        for lag in (8, 0, 4, 2, 1):
            for arm, (_, overrides) in ARMS.items():
                yield Case(f"lag={lag} {arm}", seed, lag, overrides)


def offpolicy(seeds: list[int], keep: Path, limit_s: float) -> bool:
    found = run_all(STUDY, cases(seeds), keep / "tiny-model", limit_s)
    write(found)
    return all(case.key in found for case in cases(seeds))


def write(found: Found) -> None:
    write_page(STUDY, page(found))


def page(found: Found) -> list[str]:
    head = ["lag", "correction", "runs", "measured age", f"steps to {GOAL:g}", "reached", "last score", "KL", "ESS"]
    rows = [
        _row(lag, arm, runs)
        for lag in LAGS
        for arm in ARMS
        if (runs := [run for run in found.values() if run["name"] == f"lag={lag} {arm}"])
    ]
    seeds = sorted({run["seed"] for run in found.values()})
    left = [case for case in cases([0, 1, 2]) if case.key not in found]
    note = (
        f"{len(left)} of {len(list(cases([0, 1, 2])))} trainings are still to be run: no conclusion can be drawn yet."
    )
    return [
        "# How far asynchrony can be pushed",
        "",
        "The quickstart's tasks, model and keys, but generation and training take turns in one process",
        "(`tests/acceptance/loop.py`), and the lag is enforced: step n trains on tokens of version n - lag only (the",
        "first steps on version 0). A training ends when greedy success on",
        f"{PLAYS} held-out seeds, looked at every {EVERY} steps, is at least {GOAL:g} in both tasks, or after 180",
        "steps. Everything else is equal, learning rate included.",
        f"Seeds: {', '.join(map(str, seeds))}. Measured on 2 shared CPU cores by:",
        "",
        "```",
        "make acceptance-offpolicy",
        "```",
        "",
        *([note, ""] if left else []),
        *table(head, rows),
        "",
        *[f"- `{arm}`: {what}" for arm, (what, _) in ARMS.items()],
        "",
        "`steps` is the median over the runs, with those that did not reach the goal counted as never; `last score`",
        "the mean over runs of the lower of both tasks' last success; `KL` from the policy that sampled to the",
        "current one, in nats per token, and `ESS` the effective sample size as a share of tokens, both means over",
        "the steps after the first `lag`. `off-policy.json` has every training with its scores.",
    ]


def _row(lag: int, arm: str, runs: list[dict[str, Any]]) -> list[str]:
    middle = statistics.median([run["reached"] or float("inf") for run in runs])
    reached = sum(run["reached"] is not None for run in runs)

    def mean(name: str) -> float:
        return statistics.mean(run[name] for run in runs)

    last = statistics.mean(min(run["scores"][-1].values()) for run in runs)
    steps = "never" if middle == float("inf") else f"{middle:g}"
    return [
        str(lag), f"`{arm}`", str(len(runs)), f"{mean('age'):.2f}", steps,
        f"{reached} of {len(runs)}", f"{last:.2f}", f"{mean('kl_behaviour'):.4f}", f"{mean('effective_samples'):.2f}",
    ]  # fmt: skip


if __name__ == "__main__":
    write(stored(STUDY))
