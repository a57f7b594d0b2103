"""A version while it is being written. Owns temporary directories and the errors of a full store; knows no tensors.

A draft is a directory `tmp-*` that its writer locks (the store is local to a node, so flock works). The lock tells an
active draft from the leftovers of a killed process. Memory is allocated before it is mapped, so running out of it
raises an error here instead of a SIGBUS later.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import xxhash

from rollart_hpc.errors import SiteError
from rollart_hpc.weights.layout import ALIGNMENT
from rollart_hpc.weights.spares import Mapped, Spares

_PADDING = bytes(ALIGNMENT)
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Draft:
    """Use as a context manager: on exit, a draft that was not committed is removed."""

    def __init__(self, parent: Path, name: str, spares: Spares) -> None:
        self.target = parent / name
        self._spares = spares
        self._mapped: dict[str, Mapped] = {}
        with explained(parent):
            hidden = Path(tempfile.mkdtemp(prefix=".", dir=parent))
            self._lock = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self.directory = parent / f"tmp-{name}{hidden.name}"
            hidden.rename(self.directory)

    def append(self, file: str, data: bytes | memoryview) -> None:
        """Append to a file of the draft."""
        with explained(self.directory):
            fd = os.open(self.directory / file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
            finally:
                os.close(fd)

    def allocate(self, file: str, num_bytes: int) -> mmap.mmap:
        """A file mapped for writing, with all its memory allocated: a spare one if possible, else a new one."""
        with explained(self.directory):
            mapped = self._spares.take(file, num_bytes, self.directory) or self._new(file, num_bytes)
        self._mapped[file] = mapped
        return mapped.memory

    def commit(self, file: str, data: bytes) -> None:
        """Write the last file and make the version visible. It replaces a version of the same name."""
        self.append(file, data)
        if self.target.exists():
            aside = self.directory.with_name(f"{self.directory.name}.old")
            self.target.rename(aside)
            self.directory.rename(self.target)
            shutil.rmtree(aside, ignore_errors=True)
        else:
            self.directory.rename(self.target)
        self._spares.keep(self.target, self._mapped)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
        os.close(self._lock)

    def _new(self, file: str, num_bytes: int) -> Mapped:
        fd = os.open(self.directory / file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, num_bytes)
            memory = mmap.mmap(fd, num_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)  # no page fault per 4 KiB later
            return Mapped(memory, os.fstat(fd).st_ino)
        finally:
            os.close(fd)


class DraftFile:
    """A bucket file being written: padded appends and a running checksum."""

    def __init__(self, draft: Draft, file: str) -> None:
        self._draft = draft
        self._file = file
        self._hash = xxhash.xxh3_64()
        self.num_bytes = 0

    def append(self, offset: int, data: memoryview) -> None:
        for part in (_PADDING[: offset - self.num_bytes], data):
            self._draft.append(self._file, part)
            self._hash.update(part)
        self.num_bytes = offset + len(data)

    @property
    def checksum(self) -> str:
        return self._hash.hexdigest()


def sweep(parent: Path) -> None:
    """Remove drafts whose writer is gone."""
    for path in parent.glob("tmp-*"):
        with contextlib.suppress(OSError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(fd)


@contextlib.contextmanager
def explained(where: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise SiteError(f"can't write the weight store: {error}", "check the owner of its directory") from None
        free = shutil.disk_usage(where.parent).free
        raise SiteError(
            f"no room for the weights in {where.parent}: {free >> 20} MiB free",
            "free shared memory on the node, or request more (--mem, tmpfs size)",
        ) from None
