"""The phases from the controller's start to the first step. Owns their names; reads lines of metrics.jsonl.

roles joined    every process that the run started with has joined
weights         the first engine can generate
validated       the base model's score is known
first step      the first optimizer step is committed
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rollart_hpc.vocabulary import EventKind, LineKind


@dataclass(frozen=True)
class Phase:
    name: str
    end_s: float  # since the controller started


def start_phases(lines: Iterable[dict[str, Any]]) -> list[Phase]:
    """The phases that the run reached, in the order in which they ended."""
    joined_s, ends = 0.0, {}
    for line in lines:
        at_s, kind, what = float(line.get("time_s", 0.0)), line.get("kind"), line.get("what")
        if what == EventKind.WORKER_JOINED:
            joined_s = at_s
        elif what == EventKind.RUNNING:
            ends["weights"] = at_s
        elif kind == LineKind.VALIDATION:
            ends["validated"] = at_s
        elif kind == LineKind.STEP:
            ends["first step"] = at_s
            break
    if ends:
        ends["roles joined"] = joined_s
    return sorted((Phase(name, end_s) for name, end_s in ends.items()), key=lambda phase: phase.end_s)


def first_step_s(lines: Iterable[dict[str, Any]]) -> float | None:
    """None if there was no step."""
    return next((phase.end_s for phase in start_phases(lines) if phase.name == "first step"), None)
