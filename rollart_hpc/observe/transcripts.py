"""Reads the transcripts of a run, live or ended: chosen, and joined with steps and advantages. Writes nothing.

import pandas
frame = pandas.DataFrame(transcripts.rows("RUN_DIR"))
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec

from rollart_hpc.observe import ledger
from rollart_hpc.observe.plays import ADVANTAGES, PLAYS, Advantages, Play, spread
from rollart_hpc.observe.shards import lines, shards
from rollart_hpc.rundir import RunDir

Note = Callable[[str], None]


class Facet(Protocol):
    """What a choice looks at: of a play, or of a summary of one."""

    trajectory: str
    task: str
    purpose: str
    group: int | None
    validation: int | None
    step: int | None
    reward: float
    success: bool


@dataclass(frozen=True)
class Where:
    """Which plays; None: any. `steps`: that trained them, or the validated version; both ends belong to it."""

    task: str | None = None
    steps: tuple[int, int] | None = None
    success: bool | None = None
    purpose: str | None = None
    group: int | None = None
    trajectory: str | None = None
    reward: tuple[float, float] | None = None

    def holds(self, play: Facet) -> bool:
        at = play.validation if play.purpose == "validate" else play.step
        return (
            self.task in (None, play.task)
            and (self.steps is None or (at is not None and self.steps[0] <= at <= self.steps[1]))
            and self.success in (None, play.success)
            and self.purpose in (None, play.purpose)
            and self.group in (None, play.group)
            and self.trajectory in (None, play.trajectory)
            and (self.reward is None or self.reward[0] <= play.reward <= self.reward[1])
        )


def read(run: RunDir, where: Where | None = None, note: Note = lambda _: None) -> Iterator[Play]:
    """Oldest policy version first. `note` hears of what was skipped. Tokens have no advantages: see `with_advantages`.

    A play that two reward workers scored is told once.
    """
    where = where or Where()
    steps = trained_steps(run)
    decoder = msgspec.json.Decoder(Play)
    seen: set[tuple[str, int]] = set()
    for path in shards(run.transcripts, PLAYS):
        for line in lines(path, note):
            try:
                play = decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                note(f"{path.name}: skipped a line: {error}")
                continue
            play.step = steps.get(play.trajectory)
            if (key := (play.trajectory, play.issue)) not in seen and where.holds(play):
                seen.add(key)
                yield play


def rows(run_dir: str | Path, where: Where | None = None) -> Iterator[dict[str, Any]]:
    """As plain dictionaries, for a data frame."""
    return map(msgspec.to_builtins, read(RunDir(run_dir), where))


def extremes(plays: Iterable[Play], count: int, *, best: bool) -> list[Play]:
    """Those with the highest or the lowest rewards, first the most extreme; of equal ones the oldest."""
    choose = heapq.nlargest if best else heapq.nsmallest
    return choose(count, plays, key=lambda play: play.reward)


def trained_steps(run: RunDir) -> dict[str, int]:
    """The step that trained each trajectory, in the surviving chain."""
    if not run.ledger.exists():
        return {}
    chain = ledger.surviving(ledger.entries(run.ledger))
    return {name: line.step for line in chain for name in line.trajectories}


def with_advantages(run: RunDir, plays: Iterable[Play], note: Note = lambda _: None) -> list[Play]:
    """Fill in what the trainer recorded about plays that have tokens."""
    found = list(plays)
    wanted = {play.trajectory: play for play in found if play.samples and play.step is not None}
    if not wanted:
        return found
    decoder = msgspec.json.Decoder(Advantages)
    for path in shards(run.transcripts, ADVANTAGES):
        for line in lines(path, note):
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, ValueError):  # of another version, or torn
                given = decoder.decode(line)
                play = wanted.get(given.trajectory)
                if play is not None and play.step == given.step and len(given.samples) == len(play.samples):
                    for tokens, advantage in zip(play.samples, given.samples, strict=True):
                        tokens.advantages = spread(tokens, advantage)
    return found
