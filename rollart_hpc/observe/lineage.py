"""Verifies a fork together with the runs it descends from. Reads their ledgers; owns no file.

A fork continues the chain of another run: up to the forked version the steps are those of the other ledger, then its
own. No trajectory may be trained twice in the whole chain.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from rollart_hpc.observe import ledger
from rollart_hpc.observe.ledger import Entry, Forked, Line
from rollart_hpc.rundir import RunDir


def digest_of(path: Path, version: int, attempt: int) -> str:
    """Of the weights that this attempt called `version`; "" if the ledger does not say (the base model)."""
    found = ""
    for entry in ledger.entries(path) if path.exists() else ():
        match entry:
            case Line(version=made, attempt=by) if (made, by) == (version, attempt):
                found = entry.digest
            case Forked(forked=taken) if taken == version:
                found = entry.digest
    return found


def ancestors(run: RunDir) -> list[Forked]:
    """Where it was forked from, and where that run was, nearest first. Ends at a run that can't be read."""
    found: list[Forked] = []
    seen = {run.path}
    while run.ledger.exists() and (began := ledger.origin(run.ledger)) is not None:
        found.append(began)
        run = RunDir(began.path)
        if run.path in seen:
            break
        seen.add(run.path)
    return found


def problems(run: RunDir) -> list[str]:
    """Everything that contradicts exactly-once across forks; the rules within a run are those of `ledger.check`."""
    found: list[str] = []
    chain = ledger.surviving(ledger.entries(run.ledger))
    for began in ancestors(run):
        source = RunDir(began.path)
        if not source.ledger.exists():
            found.append(f"{source.ledger} is not there, so the steps before version {began.forked} can't be verified")
            break
        if source.run_id != began.run:
            found.append(f"{source.path} is run {source.run_id}, not the run {began.run} that was forked")
            break
        before = _up_to(source.ledger, began)
        own = ledger.origin(source.ledger)
        is_made = any(line.digest == began.digest for line in before[-1:]) or (own and own.digest == began.digest)
        if began.digest and not is_made:
            found.append(f"{source.ledger} has no version {began.forked} with digest {began.digest}")
        chain = before + chain
    found += [text for before, line in pairwise(chain) for text in ledger.link_problems(before, line)]
    trained = ledger.Trained()
    found += [
        f"{name} trained 2 times, again in step {line.step}"
        for line in chain
        for name in line.trajectories
        if not trained.add(name)
    ]
    return found


def _up_to(path: Path, began: Forked) -> list[Line]:
    """The chain that led to the forked weights, even if the run rolled them back later; empty if others made them."""
    entries = list(ledger.entries(path))
    made = [number for number, entry in enumerate(entries) if _makes(entry, began)]
    return ledger.surviving(entries[: made[-1] + 1]) if made else []


def _makes(entry: Entry, began: Forked) -> bool:
    return isinstance(entry, Line) and (entry.version, entry.digest) == (began.forked, began.digest)
