"""`ledger.jsonl`: which steps survived, and whether each trajectory trained at most once in them. Owns its format.

A line is one committed step, or a restore. After a restore, the lines after the restored version are void: a later line
with the same or an earlier version replaces them. The remaining lines are the surviving chain. They must link up: every
line's parent digest is the digest of the line before. The first line of a fork says which weights of which run it began
with; `lineage.py` follows it into the ledger of that run.

    {"attempt": 1, "step": 7, "version": 8, "parent_digest": ..., "digest": ..., "packed": "eJx..."}
    {"attempt": 2, "restored": 5, "why": "checkpoint ... is damaged"}
    {"attempt": 0, "forked": 8, "digest": ..., "run": "a3b1...", "path": "/runs/first"}

The trajectories of a step are packed when its line is written: ids are `aATTEMPT.gGROUP.mMEMBER`, so groups are stored
as differences, members and ages (step - start version) as a byte each, all deflated. Nothing is lost, and the file is
only ever appended to. Ids of another form, and lines of earlier versions, are plain lists.
"""

from __future__ import annotations

import base64
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec

_MEMBERS = {str(number): number for number in range(256)}
_PAGE_BITS = 12
_BITS = 32  # members of a group that are counted as bits


class Line(msgspec.Struct):
    attempt: int
    step: int
    version: int
    parent_digest: str
    digest: str
    groups: list[int]
    trajectories: list[str]
    start_versions: list[int]


class Restored(msgspec.Struct):
    """The weights of this version were restored; later ones no longer exist."""

    attempt: int
    restored: int
    why: str = ""


class Forked(msgspec.Struct):
    """The run began with this version of another run."""

    attempt: int
    forked: int
    digest: str
    run: str  # its id
    path: str  # its run directory at that time


Entry = Line | Restored | Forked


class _Row(msgspec.Struct, omit_defaults=True):
    """Any line of the file."""

    attempt: int
    step: int = -1
    version: int = -1
    parent_digest: str = ""
    digest: str = ""
    packed: str = ""
    groups: list[int] = []
    trajectories: list[str] = []
    start_versions: list[int] = []
    restored: int = -1
    why: str = ""
    forked: int = -1
    run: str = ""
    path: str = ""

    @property
    def is_step(self) -> bool:
        return bool(self.digest) and self.restored < 0 and self.forked < 0


class _Columns(msgspec.Struct, array_like=True):
    steps_between: list[int]  # of group ids
    attempts: list[tuple[int, int]]  # attempt, number of groups in a row
    members: bytes
    ages: bytes


_row = msgspec.json.Decoder(_Row)
_columns = msgspec.msgpack.Decoder(_Columns)


# --- writing -----------------------------------------------------------------------------------


def encode(entry: Entry) -> bytes:
    if not isinstance(entry, Line):
        return msgspec.json.encode(entry)
    head = entry.attempt, entry.step, entry.version, entry.parent_digest, entry.digest
    columns = _packed(entry)
    if columns is None:
        return msgspec.json.encode(entry)
    data = base64.b85encode(zlib.compress(msgspec.msgpack.encode(columns), 6)).decode()
    return msgspec.json.encode(_Row(*head, packed=data))


def _packed(line: Line) -> _Columns | None:
    """None if ids or ages don't have the usual form."""
    size, rest = divmod(len(line.trajectories), len(line.groups) or 1)
    if rest or not size:
        return None
    columns = _Columns([], [], b"", b"")
    members, ages = bytearray(), bytearray()
    before = 0
    try:
        for at in sorted(range(len(line.groups)), key=line.groups.__getitem__):
            group, own = line.groups[at], slice(at * size, (at + 1) * size)
            attempt, pairs = _group(group, line.trajectories[own], line.start_versions[own])
            columns.steps_between.append(group - before)
            before = group
            if columns.attempts and columns.attempts[-1][0] == attempt:
                columns.attempts[-1] = attempt, columns.attempts[-1][1] + 1
            else:
                columns.attempts.append((attempt, 1))
            members.extend(member for member, _ in pairs)
            ages.extend(line.step - version for _, version in pairs)
    except (ValueError, KeyError):  # also an age below 0 or above 255
        return None
    columns.members, columns.ages = bytes(members), bytes(ages)
    return columns


def _group(group: int, names: list[str], versions: list[int]) -> tuple[int, list[tuple[int, int]]]:
    """The attempt that all ids of a group name, and (member, start version), sorted."""
    attempt = int(names[0].partition(".")[0][1:])
    prefix = f"a{attempt}.g{group}.m"
    if not all(name.startswith(prefix) for name in names):
        raise ValueError("ids of another form")
    skip = len(prefix)
    return attempt, sorted((_MEMBERS[name[skip:]], version) for name, version in zip(names, versions, strict=True))


# --- reading -----------------------------------------------------------------------------------


def _rows(path: Path) -> Iterator[_Row]:
    """Skips a line that a power failure tore: its step was never announced, so either the chain continues without it
    or `problems` finds the gap."""
    with path.open("rb") as file:
        for data in file:
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                yield _row.decode(data)


def _entry(row: _Row) -> Entry | None:
    if row.restored >= 0:
        return Restored(row.attempt, row.restored, row.why)
    if row.forked >= 0:
        return Forked(row.attempt, row.forked, row.digest, row.run, row.path)
    if not row.digest:
        return None
    head = row.attempt, row.step, row.version, row.parent_digest, row.digest
    if not row.packed:
        return Line(*head, row.groups, row.trajectories, row.start_versions)
    try:
        return Line(*head, *_unpacked(row.step, _columns.decode(zlib.decompress(base64.b85decode(row.packed)))))
    except (ValueError, zlib.error, msgspec.DecodeError):
        return None


def _unpacked(step: int, columns: _Columns) -> tuple[list[int], list[str], list[int]]:
    groups: list[int] = []
    for gap in columns.steps_between:
        groups.append(gap + (groups[-1] if groups else 0))
    size = len(columns.members) // max(1, len(groups))
    attempts = [attempt for attempt, count in columns.attempts for _ in range(count)]
    prefixes = [f"a{attempt}.g{group}.m" for attempt, group in zip(attempts, groups, strict=True)]
    names = [f"{prefixes[i // size]}{member}" for i, member in enumerate(columns.members)]
    return groups, names, [step - age for age in columns.ages]


def entries(path: Path) -> Iterator[Entry]:
    """All complete lines, in the order they were written."""
    return (entry for entry in map(_entry, _rows(path)) if entry is not None)


def read(path: Path) -> list[Line]:
    """All committed steps, in the order they were written."""
    return [entry for entry in entries(path) if isinstance(entry, Line)]


def surviving(lines: Iterable[Entry]) -> list[Line]:
    """The chain that leads to the newest weights."""
    chain: list[Line] = []
    for line in lines:
        above = _voids_from(line)
        while chain and chain[-1].version >= above:
            chain.pop()
        if isinstance(line, Line):
            chain.append(line)
    return chain


def _voids_from(entry: Entry) -> int:
    """Steps that made this version or a later one don't survive this entry."""
    match entry:
        case Line():
            return entry.version
        case Restored():
            return entry.restored + 1
        case Forked():
            return entry.forked + 1


def origin(path: Path) -> Forked | None:
    """Where a fork comes from; None for any other run."""
    return next((entry for entry in entries(path) if isinstance(entry, Forked)), None)


# --- checking ----------------------------------------------------------------------------------


def problems(lines: Iterable[Entry], group_size: int, alpha: int) -> list[str]:
    """Everything that contradicts exactly-once. An empty list proves that it holds."""
    lines = list(lines)
    began = next((entry for entry in lines if isinstance(entry, Forked)), None)
    return _problems(surviving(lines), group_size, alpha, began)


def check(path: Path, group_size: int, alpha: int) -> list[str]:
    """`problems` of a ledger of any size. Needs 4 bytes of memory for each group, and a few for each step."""
    kept: list[tuple[int, int]] = []  # version, number of the line
    began: Forked | None = None
    for number, row in enumerate(_rows(path)):
        entry = None if row.is_step else _entry(row)
        above = _voids_from(entry) if entry else row.version
        while kept and kept[-1][0] >= above:
            kept.pop()
        if row.is_step:
            kept.append((row.version, number))
        began = entry if isinstance(entry, Forked) else began
    numbers = iter([number for _, number in kept])
    return _problems(_chosen(path, numbers), group_size, alpha, began)


def _chosen(path: Path, numbers: Iterator[int]) -> Iterator[Line]:
    wanted = next(numbers, -1)
    for number, row in enumerate(_rows(path)):
        if number == wanted:
            wanted = next(numbers, -1)
            entry = _entry(row)
            if isinstance(entry, Line):  # otherwise its trajectories can't be read, and the gap is found
                yield entry


def _problems(chain: Iterable[Line], group_size: int, alpha: int, began: Forked | None) -> list[str]:
    found: list[str] = []
    trained = Trained()
    before: Line | Forked | None = began
    for line in chain:
        found += link_problems(before, line)
        if len(line.trajectories) != group_size * len(line.groups):
            found.append(f"step {line.step}: {len(line.trajectories)} trajectories in {len(line.groups)} groups")
        for name, version in zip(line.trajectories, line.start_versions, strict=True):
            if not line.step - alpha <= version <= line.step:
                found.append(f"step {line.step}: {name} started under version {version}")
            if not trained.add(name):
                found.append(f"{name} trained 2 times, again in step {line.step}")
        before = line
    return found


def link_problems(before: Line | Forked | None, line: Line) -> Iterator[str]:
    if before is not None:
        version = before.version if isinstance(before, Line) else before.forked
        if line.parent_digest != before.digest:
            yield f"step {line.step}: its parent is not the weights of version {version}"
        if line.version != version + 1:
            yield f"version {line.version} follows version {version}"
    if line.version != line.step + 1:
        yield f"step {line.step} made version {line.version}"


class Trained:
    """The trajectories seen so far: a bit each."""

    def __init__(self) -> None:
        self._pages: dict[tuple[str, int], array[int]] = {}
        self._others: set[str] = set()  # ids of another form

    def add(self, name: str) -> bool:
        """False if it was there."""
        attempt, _, rest = name.partition(".g")
        group, _, member = rest.partition(".m")
        if not (group.isdecimal() and member in _MEMBERS and _MEMBERS[member] < _BITS):
            is_new = name not in self._others
            self._others.add(name)
            return is_new
        page, place = divmod(int(group), 1 << _PAGE_BITS)
        bits = self._pages.get((attempt, page))
        if bits is None:
            bits = self._pages[attempt, page] = array("I", bytes(4 << _PAGE_BITS))
        bit = 1 << _MEMBERS[member]
        is_new = not bits[place] & bit
        bits[place] |= bit
        return is_new
