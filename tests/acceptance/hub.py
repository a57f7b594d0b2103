"""What the controller costs at any size. Its goals are checked here, not in tests: a shared machine is noisy."""

from __future__ import annotations

import json
from typing import Any

from tests.acceptance.drive import RESULTS, rollart, table, write_page

FLAT, TURNS_PER_S, P99_MS, REGISTER_S = 1.2, 10_000, 20, 10

Figures = dict[str, Any]


def hub() -> bool:
    text = rollart("bench", "hub", "--json")
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "hub.json").write_text(text)
    figures = json.loads(text)
    goals = goals_of(figures["rows"])
    write_page("hub", page(figures, goals))
    return all(met for _, _, met in goals)


def page(figures: Figures, goals: list[tuple[str, str, bool]]) -> list[str]:
    cells = [
        [
            f"{row['engines']:,}", f"{row['slots']:,}", f"{row['workers']:,}", f"{row['register_s']:.1f}",
            f"{row['turns_per_s']:,.0f}", f"{row['cpu_us_per_turn']:.0f}", f"{row['p99_ms']:.1f}",
            f"{row['p99_saturated_ms']:.0f}", _counts(row["saturated"]), _counts(row["paced"]), row["bound_by"],
        ]
        for row in figures["rows"]
    ]  # fmt: skip
    head = ["engines", "slots", "workers", "register s", "turns/s", "controller CPU us per turn", "p99 ms at half load"]
    return [
        "# The controller at any size",
        "",
        "A real controller under a synthetic load that only sends messages, on 2 CPU cores. `rollart-hpc bench hub`",
        "prints the figures; `hub.json` has the raw ones. This page is written by:",
        "",
        "```",
        "make acceptance-hub",
        "```",
        "",
        f"{figures['payload']} For turns per second, CPU and the saturated p99, all slots request turns without",
        f"pause for {figures['seconds']:g} s; the p99 at half load is measured at half that rate. The time to register",
        "runs from the first connect to the last Welcome. The counts of each window are: versions committed; installs",
        "on the engine with the fewest; groups trained; trajectories scored; turns of the engines with the fewest and",
        "the most.",
        '"Bound by" is the Python thread that was always busy, or `cores` if both cores were.',
        "Versions are committed as fast as groups complete. The batch size of each row is chosen so that about seven",
        "versions fall into a window, and the staleness bound so that no trajectory is dropped for its age (`batch`",
        "and `alpha` in `hub.json`).",
        "",
        *table([*head, "p99 ms saturated", "counts, saturated", "counts, paced", "bound by"], cells),
        "",
        *table(["goal", "measured", "met"], [[what, got, "yes" if met else "no"] for what, got, met in goals]),
    ]


def _counts(window: Figures) -> str:
    share = f"{window['fewest_turns']}-{window['most_turns']}"
    return f"{window['versions']}; {window['fewest_installs']}; {window['groups']}; {window['scores']}; {share}"


def goals_of(rows: list[Figures]) -> list[tuple[str, str, bool]]:
    """What is asked for, what was measured, whether that is enough."""
    slots = max(row["slots"] for row in rows)
    by_engines = {row["engines"]: row for row in rows if row["slots"] == slots}
    by_slots = {row["slots"]: row for row in rows if row["engines"] == 100}
    largest = by_engines[max(by_engines)]
    size, workers = f"{largest['engines']:,} engines, {slots:,} slots", f"{largest['workers']:,}"
    turns, p99, register = largest["turns_per_s"], largest["p99_ms"], largest["register_s"]
    return [
        _flat(f"{min(by_engines)} to {max(by_engines):,} engines at {slots:,} slots", list(by_engines.values())),
        _flat(f"{min(by_slots)} to {max(by_slots):,} slots at 100 engines", list(by_slots.values())),
        (f"at least {TURNS_PER_S:,} turns/s: {size}", f"{turns:,.0f}", turns >= TURNS_PER_S),
        (f"p99 at half load below {P99_MS} ms: {size}", f"{p99:.1f} ms", p99 < P99_MS),
        (
            f"{workers} workers registered within {REGISTER_S} s",
            f"{register:.1f} s",
            register <= REGISTER_S,
        ),
    ]


def _flat(what: str, rows: list[Figures]) -> tuple[str, str, bool]:
    costs = [row["cpu_us_per_turn"] for row in rows]
    ratio = max(costs) / min(costs)
    return f"CPU per turn flat within 20%: {what}", f"highest / lowest = {ratio:.2f}", ratio <= FLAT
