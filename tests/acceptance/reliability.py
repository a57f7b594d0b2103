"""docs/results/reliability.md. Owns the page and where its parts store their figures; measures nothing.

Each part writes docs/results/reliability/PART.json and renders the page again, from what exists. So parts can be run
one at a time.
"""

from __future__ import annotations

import json
from typing import Any

from tests.acceptance.drive import RESULTS, table, write_page

Figures = dict[str, Any]
PARTS = RESULTS / "reliability"


def store(part: str, figures: Figures) -> None:
    PARTS.mkdir(parents=True, exist_ok=True)
    (PARTS / f"{part}.json").write_text(json.dumps(figures, indent=1) + "\n")
    render()


def stored(part: str) -> Any:
    paths = (PARTS / f"{part}.json", RESULTS / f"{part}.json")  # some parts have a page of their own too
    return next((json.loads(path.read_text()) for path in paths if path.exists()), None)


def render() -> None:
    lines = ["# What was done to bring it down", "", "Measured on 2 shared CPU cores. Each part names its command."]
    for part, section in SECTIONS.items():
        figures = stored(part)
        if figures is not None:
            lines += ["", *section(figures)]
    write_page("reliability", lines)


def _head(title: str, part: str) -> list[str]:
    return [f"## {title}", "", "```", f"make acceptance-{part}", "```", ""]


def _falls(figures: Figures) -> list[str]:
    """Written by hand: what fell, and which test holds it up now."""
    head = ["what was tried", "before", "now", "test"]
    rows = [[fall[name] for name in ("tried", "before", "now", "test")] for fall in figures["falls"]]
    return ["## Falls, before and after", "", *table(head, rows)]


def _faults(figures: Figures) -> list[str]:
    worlds = [
        [name, f"{world['runs']:,}", f"{world['events']:,}", f"{world['faults']:,}"]
        for name, world in figures["worlds"].items()
    ]
    kinds = sorted(figures["kinds"].items(), key=lambda kind: -kind[1])
    return [
        *_head("Runs under faults, in virtual time", "faults"),
        f"Seeded runs in {figures['cores']} processes for {figures['seconds']:,.0f} s, which got "
        f"{figures['cpu_seconds']:,.0f} s of CPU beside other work: "
        f"{sum(world['runs'] for world in figures['worlds'].values()):,} runs. Each draws its run file, its cluster "
        f"and its faults from the seed. Broken invariants: {len(figures['broken'])}.",
        "",
        *table(["driven", "runs", "events", "faults"], worlds),
        *[f"- {line}" for line in figures["broken"][:20]],
        "",
        "Faults: " + ", ".join(f"{count:,} x {kind}" for kind, count in kinds) + ".",
        "",
        "The core checks: exactly the steps asked for, each trajectory at most once, whole groups, staleness, the mix "
        "of tasks, credits, bounded admission and memory, progress within 4,000 virtual seconds. The controller adds: "
        "the ledger file, the versions of all tokens, finite rewards, payloads that belong to living trajectories, the "
        "size of status and metrics, no exception.",
    ]


def _mutants(figures: Figures) -> list[str]:
    driven = [
        [m["defect"], m["world"], f"{m['seeds']:,}" if m["seeds"] else "never", f"{m['within']:,}"]
        for m in figures["driven"]
    ]
    tested = [[m["defect"], m["test"].partition("::")[0], _several(m["fails"])] for m in figures["tested"]]
    return [
        *_head("Fixed defects, put back one at a time", "mutants"),
        "Driven by the worlds above, seed by seed from 1, or by mutated messages, counted in thousands:",
        "",
        *table(["defect", "driven", "caught after", "limit"], driven),
        "",
        "Where no world reaches, a test of its own must fail:",
        "",
        *table(["defect", "test file", "fails"], tested),
    ]


def _several(names: list[str]) -> str:
    each = list(dict.fromkeys(names))
    return "not noticed" if not each else each[0] + (f" and {len(each) - 1} more" if each[1:] else "")


def _fuzz(figures: Figures) -> list[str]:
    rows = [[name.replace("_", " "), f"{value:,}" if isinstance(value, int) else str(value)]
            for name, value in figures.items()]  # fmt: skip
    return [*_head("Mutated messages", "fuzz"), *table(["", ""], rows)]


def _trust(f: Figures) -> list[str]:
    rows = [
        [f"{checks[key]:,.0f}" for key in ("turns_per_s", "cpu_us_per_turn")]
        + [f"{trusts[key]:,.0f}" for key in ("turns_per_s", "cpu_us_per_turn")]
        for checks, trusts in f["pairs"]
    ]
    head = ["turns/s", "controller CPU us per turn", "turns/s without checks", "CPU us without checks"]
    return [
        *_head("What the checks of messages cost", "trust"),
        f"Pairs of `rollart-hpc bench hub --engines {f['engines']} --slots {f['slots']} --seconds {f['seconds']}`, one "
        "after the other: the controller as it is, and a copy without roles, bounds of types and sizes, and without "
        f"`roles/checks.py`. Median ratio of turns/s {f['ratios']['turns_per_s']:.3f} (asked for: at least 0.95), of "
        f"CPU per turn {f['ratios']['cpu_us_per_turn']:.3f}.",
        "",
        *table(head, rows),
    ]


def _strangers(f: Figures) -> list[str]:
    rows = [
        [
            f"{a['hard']:,}",
            f"{a['turns_before']:.1f} -> {a['turns_after']:.1f}",
            f"{a['attempt_before']} -> {a['attempt_after']}",
            f"{a['step_before']} -> {a['step_after']}",
            f"{a['files_before']} -> {a['files_most']}",
        ]
        for a in f["attacks"]
    ]
    return [
        *_head("Connections without a key", "strangers"),
        f"{f['connections']:,} TCP connections that send one byte of a greeting, and come again when they are closed, "
        f"against the controller of a live run with a soft limit of {f['soft']:,} files, for {f['seconds']:.0f} s.",
        "",
        *table(["hard limit", "turns/s, before and meanwhile", "attempt", "step", "files of the controller"], rows),
    ]


def _sick(figures: Figures) -> list[str]:
    rows = [
        [
            what,
            "-" if f["aside_s"] is None else f"{f['aside_s']:.0f} s",
            f"{f['limit_s']:.0f} s",
            f"{f['turns_before']:.1f}",
            f"{f['turns_after']:.1f}",
            f"{f['turns_after'] / f['turns_before']:.1%}",
            ", ".join(f["quarantined"]) or "none",
        ]
        for what, f in figures.items()
    ]
    head = ["worker", "set aside after", "goal", "turns/s before", "turns/s from then on", "ratio", "quarantined"]
    return [
        *_head("Bad workers", "sick"),
        "With the default time limits and restarts. A third engine joins that accepts requests and never answers; a "
        f"third env worker joins on which no reset works. Windows of {next(iter(figures.values()))['window_s']:.0f} s.",
        "",
        *table(head, rows),
    ]


def _chaos(f: Figures) -> list[str]:
    kinds = list(dict.fromkeys(kind for done in f["acts"].values() for kind in done))
    rows = [[role, *(str(done.get(kind, 0)) for kind in kinds)] for role, done in f["acts"].items()]
    return [
        *_head("Chaos on the development cluster", "chaos"),
        f"`rollart-hpc chaos RUN_DIR --seed {f['seed']} --for {f['lasted_s']:.0f}s`: {f['num_acts']} acts, "
        f"{f['num_recovered']} recoveries, the longest {f['longest_recovery_s']:.1f} s. Steps {f['steps_before']} to "
        f"{f['steps_after']}, {f['trajectories']:,} trajectories in the surviving chain: "
        + ("every step was trained exactly once." if not f["problems"] else "; ".join(f["problems"])),
        "",
        *table(["role", *kinds], rows),
        *[f"- not done {count} times: {reason}" for reason, count in f["refused"].items()],
    ]


def _soak(f: Figures) -> list[str]:
    memory = [
        [name, f"{row['first']:.0f}", f"{row['last']:.0f}", f"{row['per_hour']:+.1f}", f"{row['per_step'] * 1024:+.2f}",
         f"{row['files_first']:.0f}", f"{row['files_last']:.0f}"]
        for name, row in f["processes"].items()
    ]  # fmt: skip
    disk = [
        [name, f"{row['first']:.1f}", f"{row['last']:.1f}", f"{row['per_hour']:+.1f}"]
        for name, row in f["directory"].items()
    ]
    return [
        *_head("Soak", "soak"),
        f"{f['slots']:,} environment slots in {f['env_workers']} env workers for {f['seconds']:,.0f} s: {f['steps']:,} "
        f"steps, {f['turns']:,} turns, {f['trajectories']:,} trajectories. Slopes by least squares over the second "
        "half.",
        "",
        *table(["process", "MB first", "MB last", "MB per hour", "kB per step", "files first", "files last"], memory),
        "",
        *table(["run directory", "MB first", "MB last", "MB per hour"], disk),
    ]


SECTIONS = {
    "falls": _falls,
    "faults": _faults,
    "mutants": _mutants,
    "fuzz": _fuzz,
    "trust": _trust,
    "strangers": _strangers,
    "sick": _sick,
    "chaos": _chaos,
    "soak": _soak,
}
