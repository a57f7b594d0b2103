"""Every row of the paper's tables beside a simulation of our own core. Writes docs/results/paper.md and paper.json."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable
from itertools import pairwise

from rollart_hpc.launch.plan import make_plan
from rollart_hpc.simulate.figures import simulate
from tests.acceptance.drive import RESULTS, table, write_page
from tests.acceptance.paper_rows import NOT_SIMULATED, OURS, SEQUENCE, SPREADS, Row, all_rows, baseline, ours, rollart
from tests.acceptance.paper_testbed import MODELS, WORKLOADS, Setting, case_of

SEEDS = (0, 1, 2)
STEPS, WARM_UP = 3, 2
FILE = RESULTS / "paper.json"
Key = tuple[str, str]


class Times:
    """Seconds per step of every case, kept on disk as they come."""

    def __init__(self, resumes: bool) -> None:
        self.known: dict[str, list[float]] = json.loads(FILE.read_text())["step_s"] if resumes and FILE.exists() else {}

    def measure(self, settings: Iterable[Setting]) -> None:
        for setting in dict.fromkeys(settings):
            for workload in WORKLOADS:
                self._one(workload, setting)

    def _one(self, workload: str, setting: Setting) -> None:
        name = f"{workload}: {setting.key}"
        if name in self.known:
            return
        case = case_of(setting, workload)
        plan = make_plan(case.config, case.site)
        outcomes = [simulate(case, steps=STEPS, warm_up=WARM_UP, seed=seed, plan=plan)[0] for seed in SEEDS]
        self.known[name] = [round(outcome.step_s, 2) for outcome in outcomes]
        print(f"{name}: {self.known[name]} s per step, bound by {outcomes[0].bound}", flush=True)
        FILE.write_text(json.dumps({"step_s": self.known}, indent=1) + "\n")

    def has(self, *settings: Setting) -> bool:
        return all(f"{workload}: {each.key}" in self.known for workload in WORKLOADS for each in settings)

    def ratios(self, workload: str, slow: Setting, fast: Setting) -> list[float]:
        """By seed: the same seed draws the same plays in both."""
        return [a / b for a, b in zip(*(self.known[f"{workload}: {each.key}"] for each in (slow, fast)))]


def paper(resumes: bool = False) -> bool:
    rows, times = all_rows(), Times(resumes)
    times.measure(each for row in rows for each in (row.slow, row.fast))
    times.measure(ours(model, what) for what in OURS for model in MODELS)
    write_page("paper", page(times))
    return all(_is_in_order(times, model, "informed") for model in MODELS)


def error(row: Row, ratio: float) -> float:
    """Relative to the nearest figure of the paper; 0 within its range."""
    nearest = min(max(ratio, row.low), row.high)
    return abs(ratio / nearest - 1)


def _errors(rows: list[Row], times: Times, workload: str) -> list[float]:
    return [error(row, statistics.fmean(times.ratios(workload, row.slow, row.fast))) for row in rows]


def _middle_errors(rows: list[Row], times: Times, workload: str) -> list[float]:
    middles = [(row.low + row.high) / 2 for row in rows]
    return [abs(statistics.fmean(times.ratios(workload, r.slow, r.fast)) / m - 1) for r, m in zip(rows, middles)]


def page(times: Times) -> list[str]:
    """Also of a part of the rows: those that are left are named."""
    left = [row for row in all_rows() if not times.has(row.slow, row.fast)]
    rows = [row for row in all_rows() if row not in left]
    return [*_head(rows, times), *_left(left), *_body(rows, times)]


def _left(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    names = ", ".join(dict.fromkeys(f"{row.table} ({row.model})" for row in rows))
    return [
        f"**{len(rows)} rows are not computed yet:** {names}. `tests/acceptance/run.py paper --resume` computes them.",
        "",
    ]


def _head(rows: list[Row], times: Times) -> list[str]:
    predicted = [row for row in rows if not row.is_used]
    sums = [
        [
            workload,
            f"{statistics.fmean(_errors(predicted, times, workload)):.0%}",
            f"{statistics.fmean(_middle_errors(predicted, times, workload)):.0%}",
            f"{sum(each == 0 for each in _errors(predicted, times, workload))} of {len(predicted)}",
            ", ".join(model for model in MODELS if _is_in_order(times, model, workload)) or "none",
        ]
        for workload in WORKLOADS
    ]
    return [
        "# The paper's tables from our own core",
        "",
        "Every row of the tables of the ROLLART paper (arXiv 2512.22560) that a simulation can give, beside that of",
        "`rollart-hpc simulate`: the real flow core, routing and packing in virtual time, with a roofline of the GPUs.",
        f"Ratios of times per step, means of {len(SEEDS)} seeds of {STEPS} steps after {WARM_UP} that do not count;",
        "± is half the distance between the extremes. **These are simulations of an assumed workload, not measurements",
        "on GPUs.** Printed by:",
        "",
        "```",
        "make acceptance-paper",
        "```",
        "",
        "The paper gives the turns of its tasks, but neither tokens per turn nor prefix reuse nor latencies.",
        "`tests/acceptance/paper_testbed.py` and `rollart_hpc/simulate/presets.py` have every figure that was assumed,",
        "and were committed before the rows were computed. *strict* fits the paper's comparison of GPUs on single",
        "tasks; *informed* also uses two of its absolute times, and was chosen when rows of *strict* were known from a",
        "prototype.",
        "",
        *table(
            ["workload", "mean absolute error", "to the middle of ranges", "within the range", "modes in order"], sums
        ),
        "",
        "The error of a row is that to the nearest figure of the paper's range, 0 within it. Rows that were used to",
        "choose the workloads (*used*) are not in the means. The last column names the models at which no mode is",
        "slower than the one before it in the paper.",
        "",
    ]


def _body(rows: list[Row], times: Times) -> list[str]:
    return [
        *[line for name in dict.fromkeys(row.table for row in rows) for line in _table(name, rows, times)],
        "## Beyond the paper",
        "",
        "Over the paper's ROLLART (64 H800 + 32 H20, whole batches, its affinity map) in the same simulation:",
        "",
        *table(["what", *(f"{model}, {workload}" for model in MODELS for workload in WORKLOADS)], _ours(times)),
        "",
        "## Not simulated",
        "",
        *(f"- {what}: {why}." for what, why in NOT_SIMULATED),
        "",
        "## The curve of turn latencies",
        "",
        *table(["std of a turn of 10 s", "paper", *WORKLOADS], _curve(rows, times)),
        "",
        "`paper.json` has the times per step of every case and seed.",
    ]


def _is_in_order(times: Times, model: str, workload: str) -> bool:
    """Sync, Sync+, One-off, AReaL, ROLLART: none is slower than the one before."""
    ladder = [*(baseline(model, mode) for mode in SEQUENCE), rollart(model)]
    return times.has(*ladder) and all(statistics.fmean(times.ratios(workload, a, b)) >= 1 for a, b in pairwise(ladder))


def _table(name: str, rows: list[Row], times: Times) -> list[str]:
    own = [row for row in rows if row.table == name]
    cells = [
        [
            row.what + (" (*used*)" if row.is_used else ""),
            row.model,
            f"{row.low:.2f}" if row.low == row.high else f"{row.low:.2f}-{row.high:.2f}",
            *(cell for workload in WORKLOADS for cell in _cells(row, times.ratios(workload, row.slow, row.fast))),
        ]
        for row in own
    ]
    heads = ["row", "model", "paper", *(head for workload in WORKLOADS for head in (workload, "error"))]
    reasons = dict.fromkeys(row.reason for row in own if row.reason)
    why = [f"Rows that miss: {'; '.join(reasons)}.", ""] if reasons else []
    return [f"## {name[0].upper()}{name[1:]}", "", *table(heads, cells), "", *why]


def _cells(row: Row, ratios: list[float]) -> list[str]:
    mean, half = statistics.fmean(ratios), (max(ratios) - min(ratios)) / 2
    return [f"{mean:.2f} ± {half:.2f}", f"{error(row, mean):.0%}"]


def _ours(times: Times) -> list[list[str]]:
    return [[what, *(_gain(times, w, model, what) for model in MODELS for w in WORKLOADS)] for what in OURS]


def _gain(times: Times, workload: str, model: str, what: str) -> str:
    if not times.has(rollart(model), ours(model, what)):
        return "not computed"
    ratios = times.ratios(workload, rollart(model), ours(model, what))
    return f"{statistics.fmean(ratios):.2f} ± {(max(ratios) - min(ratios)) / 2:.2f}"


def _curve(rows: list[Row], times: Times) -> list[list[str]]:
    own = {row.low: row for row in rows if row.table.startswith("trajectories")}
    return [
        [
            f"{spread} s",
            f"{figure:.2f}",
            *(f"{statistics.fmean(times.ratios(w, own[figure].slow, own[figure].fast)):.2f}" for w in WORKLOADS),
        ]
        for spread, figure in SPREADS.items()
        if figure in own
    ]
