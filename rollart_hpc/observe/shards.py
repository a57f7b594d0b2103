"""Records as compressed JSON lines, in shards of limited size. Owns the names of shards, their budget, and damage.

A shard is a gzip file that grows by whole gzip members, so a reader of a live run, or after a crash, loses at most the
last member of a process. A name begins with the policy version of the shard's first line:

    a0001.v0000040.plays.reward-0-3f9c2a10.0003.jsonl.gz

All shards of a run share one budget. Whoever begins a new shard first removes the oldest ones, in the order of their
names, until there is room: what was recorded of the oldest policy versions goes first, whole shards at a time. Names
decide, not times, and nobody needs a lock: all writers would remove the same files.
"""

from __future__ import annotations

import gzip
import logging
import os
import re
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from rollart_hpc.errors import SiteError
from rollart_hpc.files import FILE_MODE, disk_errors, make_directory

log = logging.getLogger(__name__)

FLUSH_S = 5.0
FLUSH_BYTES = 256 << 10  # of uncompressed lines
MOST_BYTES = 16 << 20  # of a shard
SHARDS = 64  # in which a budget is divided at least
MEMBER_BYTES = 128 << 20  # larger ones are not read
_BLOCK_BYTES = 64 << 10
_NAME = re.compile(r"a(\d+)\.v(\d+)\.([a-z]+)\.(.+)\.(\d+)\.jsonl\.gz")


class ShardWriter:
    """Of one process and one kind. What can't be written never stops the process: a warning, and nothing more."""

    def __init__(self, directory: Path, kind: str, writer: str, *, attempt: int, budget: int) -> None:
        self._directory, self._kind, self._writer, self._attempt = directory, kind, writer, attempt
        self._budget = budget
        self._shard_bytes = min(MOST_BYTES, max(1, budget // SHARDS))
        self._lines: list[bytes] = []
        self._num_bytes = 0
        self._flushed_s = -FLUSH_S
        self._version = 0  # of the first line that waits
        self._path: Path | None = None
        self._number = 0
        self._failed = False

    @property
    def wait_s(self) -> float | None:
        """Until the next flush is due; None if there is nothing to flush."""
        return max(0.0, self._flushed_s + FLUSH_S - time.monotonic()) if self._lines else None

    def add(self, line: bytes, version: int) -> None:
        if self._failed:
            return
        if not self._lines:
            self._version = version
        self._lines.append(line)
        self._num_bytes += len(line)
        if self._num_bytes >= FLUSH_BYTES:
            self.flush()

    def flush_if_due(self) -> None:
        if self.wait_s == 0.0:
            self.flush()

    def flush(self) -> None:
        lines, self._lines, self._num_bytes = self._lines, [], 0
        self._flushed_s = time.monotonic()
        if not lines or self._failed:
            return
        member = gzip.compress(b"\n".join(lines) + b"\n", 6, mtime=0)
        try:
            self._append(member)
        except (OSError, SiteError) as error:
            self._failed = True
            log.warning("no more %s are recorded: %s", self._kind, error)

    def _append(self, member: bytes) -> None:
        """Opened for every member: another writer may have removed the shard."""
        if self._path is None:
            self._path = self._begin()
        with disk_errors(self._path):
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
            try:
                os.write(handle, member)
                size = os.fstat(handle).st_size
            finally:
                os.close(handle)
        if size >= self._shard_bytes:
            self._path = None

    def _begin(self) -> Path:
        make_directory(self._directory)
        make_room(self._directory, self._budget - self._shard_bytes)
        self._number += 1
        where = f"a{self._attempt:04}.v{max(0, self._version):07}"
        return self._directory / f"{where}.{self._kind}.{self._writer}.{self._number:04}.jsonl.gz"


def make_room(directory: Path, budget: int) -> None:
    """Remove the oldest shards until the rest has at most `budget` bytes."""
    sizes: dict[Path, int] = {}
    for path in shards(directory):
        with suppress(OSError):
            sizes[path] = path.stat().st_size
    excess = sum(sizes.values()) - budget
    for path, size in sizes.items():
        if excess <= 0:
            return
        with suppress(FileNotFoundError):
            path.unlink()
        excess -= size


def shards(directory: Path, kind: str = "") -> list[Path]:
    """Those of a kind, or all; oldest policy version first."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    found = [(match, name) for name in names if (match := _NAME.fullmatch(name))]
    chosen = [name for match, name in found if not kind or match[3] == kind]
    return [directory / name for name in sorted(chosen, key=_order)]


def _order(name: str) -> tuple[int, int, str]:
    match = _NAME.fullmatch(name)
    assert match is not None
    return int(match[1]), int(match[2]), name


def lines(path: Path, note: Callable[[str], None]) -> Iterator[bytes]:
    """The lines of a shard. Damage ends the shard, with a note; a shard that was removed is empty."""
    for member in members(path, note):
        yield from member.lines


class Member(NamedTuple):
    """A part of a shard that was written at once."""

    at: int  # where it begins in the file
    end: int
    lines: list[bytes]


def members(path: Path, note: Callable[[str], None], at: int = 0) -> Iterator[Member]:
    """The complete ones from `at` on, which is the end of another one. What comes after damage is not read."""
    try:
        with path.open("rb") as file:
            while member := _member(file, at):
                yield member
                at = member.end
    except FileNotFoundError:
        return
    except (OSError, EOFError, zlib.error) as error:
        note(f"{path.name} is damaged or still being written; skipped its end: {error}")


def _member(file: BinaryIO, at: int) -> Member | None:
    file.seek(at)
    unpack, parts, size, read = zlib.decompressobj(wbits=31), list[bytes](), 0, 0
    while not unpack.eof:
        block = unpack.unconsumed_tail or file.read(_BLOCK_BYTES)
        if not block and not read:
            return None
        if not block:
            raise EOFError("its last part is not complete")
        read += 0 if unpack.unconsumed_tail else len(block)
        parts.append(unpack.decompress(block, MEMBER_BYTES))
        size += len(parts[-1])
        if size >= MEMBER_BYTES:
            raise EOFError(f"a part is larger than {MEMBER_BYTES >> 20} MB")
    return Member(at, at + read - len(unpack.unused_data), b"".join(parts).splitlines())
