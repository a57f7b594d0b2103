"""All plays of a run as summaries in memory, grown as shards grow. Owns where in the files each play is."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import msgspec

from rollart_hpc.observe.plays import PLAYS, Play
from rollart_hpc.observe.shards import members, shards
from rollart_hpc.observe.transcripts import Where, trained_steps
from rollart_hpc.rundir import RunDir


class Summary(msgspec.Struct):
    """The fields of a play that lists show and filters use."""

    trajectory: str
    task: str
    purpose: str
    attempt: int
    group: int | None
    validation: int | None
    issue: int
    reward: float
    success: bool
    stop: str
    turns: int
    tokens: int
    last_version: int
    step: int | None = None


class Place(msgspec.Struct, frozen=True):
    path: Path
    at: int  # of its member
    number: int  # of its line


_summary = msgspec.json.Decoder(Summary)
_play = msgspec.json.Decoder(Play)


class PlayIndex:
    """Thread-safe. A shard that was removed takes its plays along at the next refresh."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._ends: dict[Path, int] = {}  # how far each shard was read
        self._plays: dict[tuple[str, int], tuple[Summary, Place]] = {}
        self._steps: dict[str, int] = {}
        self._ledger_bytes = -1
        self.notes: dict[str, None] = {}  # what was skipped

    def __len__(self) -> int:
        return len(self._plays)

    def refresh(self) -> None:
        with self._lock:
            paths = shards(self._run.transcripts, PLAYS)
            gone = self._ends.keys() - set(paths)
            if gone:
                self._plays = {key: entry for key, entry in self._plays.items() if entry[1].path not in gone}
                self._ends = {path: end for path, end in self._ends.items() if path not in gone}
            for path in paths:
                self._read_on(path)
            self._take_steps()

    def _read_on(self, path: Path) -> None:
        try:
            if path.stat().st_size == self._ends.get(path, 0):
                return
        except FileNotFoundError:
            return
        for member in members(path, self._note, self._ends.get(path, 0)):
            for number, line in enumerate(member.lines):
                try:
                    play = _summary.decode(line)
                except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                    self._note(f"{path.name}: skipped a line: {error}")
                    continue
                play.step = self._steps.get(play.trajectory)
                self._plays.setdefault((play.trajectory, play.issue), (play, Place(path, member.at, number)))
            self._ends[path] = member.end

    def _note(self, text: str) -> None:
        self.notes[text] = None

    def _take_steps(self) -> None:
        """Steps become known after a play was recorded, and a restore takes some back."""
        size = self._run.ledger.stat().st_size if self._run.ledger.exists() else 0
        if size != self._ledger_bytes:
            self._ledger_bytes = size
            self._steps = trained_steps(self._run)
            for play, _ in self._plays.values():
                play.step = self._steps.get(play.trajectory)

    # --- questions -----------------------------------------------------------------------------

    def find(self, where: Where) -> list[Summary]:
        """Oldest shard first."""
        with self._lock:
            return [play for play, _ in self._plays.values() if where.holds(play)]

    def find_recent(self, count: int) -> list[Summary]:
        """The newest ones, newest first."""
        with self._lock:
            return [play for play, _ in islice(reversed(self._plays.values()), count)]

    def tasks(self) -> list[str]:
        with self._lock:
            return sorted({play.task for play, _ in self._plays.values()})

    def load(self, trajectory: str) -> Play | None:
        """The newest issue, with everything that was recorded but advantages; None: it is not there any more."""
        with self._lock:
            entries = [entry for (name, _), entry in self._plays.items() if name == trajectory]
        for summary, place in reversed(entries):
            for member in members(place.path, lambda _: None, place.at):
                if place.number < len(member.lines):
                    play = _play.decode(member.lines[place.number])
                    play.step = summary.step
                    return play
                break
        return None

    def siblings(self, of: Play) -> list[Summary]:
        """The members of its group, by member; of a validation only itself."""
        if of.group is None:
            return self.find(Where(trajectory=of.trajectory))
        found = self.find(Where(group=of.group))
        return sorted((play for play in found if play.attempt == of.attempt), key=_member)


def _member(play: Summary) -> tuple[int, str]:
    number = play.trajectory.rpartition(".m")[2]
    return (int(number) if number.isdecimal() else 0, play.trajectory)


def lengths(plays: Iterable[Summary]) -> Iterator[tuple[str, int, float, float]]:
    """Task, plays, mean tokens, share that a limit ended."""
    by_task: dict[str, list[Summary]] = {}
    for play in plays:
        by_task.setdefault(play.task, []).append(play)
    for task, own in sorted(by_task.items()):
        count = len(own)
        yield task, count, sum(p.tokens for p in own) / count, sum(p.stop == "limit" for p in own) / count
