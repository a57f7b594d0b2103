"""Looks for a better run by small changes, within a budget of time. Pure: what a candidate is worth is asked outside.

From the best run so far it tries the moves that are likely to help against what binds, a few at a time, and takes the
best of them as soon as one is better. Nothing is tried twice. It ends when no move helps, or when the time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rollart_hpc.simulate.knobs import Move

GAIN = 0.01  # less is not worth a change of the run
_LATER = 2  # turns


@dataclass(frozen=True)
class Rating:
    """Lower is better. `bound`: what the step waits for, as `Outcome.bound` says it."""

    worth: float
    bound: str
    data: Any = None


Candidate = dict[str, Any]  # changes
Rate = Callable[[Sequence[Candidate]], Sequence[Rating | None]]  # None: it can't be


@dataclass
class Found:
    best: Candidate
    rating: Rating
    rated: list[tuple[Candidate, Rating]] = field(default_factory=list)  # the best first
    num_tried: int = 0
    num_impossible: int = 0
    is_complete: bool = False  # no move helps any more; else the time was over


def search(
    start: Candidate,
    moves: Callable[[Candidate], Iterable[Move]],
    rate: Rate,
    has_time: Callable[[], bool],
    at_once: int = 1,
    first: Rating | None = None,
    tidy: Callable[[Candidate], Candidate] = lambda candidate: candidate,
) -> Found:
    """`tidy` leaves out of a candidate what changes nothing, so that the same run is not rated twice."""
    rating = first or rate([start])[0]
    if rating is None:
        raise ValueError("the run itself can't be rated")
    found = Found(start, rating, [(start, rating)])
    seen = {_key(start)}
    while has_time():
        batch = _next(found, moves, seen, tidy)[:at_once]
        if not batch:
            found.is_complete = True
            break
        seen |= {_key(candidate) for candidate in batch}
        for candidate, rated in zip(batch, rate(batch), strict=True):
            found.num_tried += 1
            found.num_impossible += rated is None
            if rated is not None:
                found.rated.append((candidate, rated))
                if rated.worth < (1 - GAIN) * found.rating.worth:
                    found.best, found.rating = candidate, rated
    found.rated.sort(key=lambda each: each[1].worth)
    return found


def _next(
    found: Found,
    moves: Callable[[Candidate], Iterable[Move]],
    seen: set[str],
    tidy: Callable[[Candidate], Candidate],
) -> list[Candidate]:
    """Untried neighbours of the best: one of each kind in turn, those that hardly help two turns later."""
    ranked: list[tuple[int, int, Candidate]] = []
    counts: dict[tuple[str, bool], int] = {}
    for number, move in enumerate(moves(found.best)):
        candidate = tidy({**found.best, **move.changes})
        if _key(candidate) in seen:
            continue
        is_idle = not any(found.rating.bound.startswith(what) for what in move.helps)
        turn = counts.get((move.kind, is_idle), 0)
        counts[move.kind, is_idle] = turn + 1
        ranked.append((turn + _LATER * is_idle, number, candidate))
    unique = {_key(candidate): candidate for *_, candidate in sorted(ranked, key=lambda each: each[:2])}
    return list(unique.values())


def _key(candidate: Candidate) -> str:
    return repr(sorted(candidate.items()))
