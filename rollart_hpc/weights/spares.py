"""Bucket files of pruned versions, used again. Owns the memory that this process mapped for drafts; knows no tensors.

Fresh pages of shared memory cost several times what filling them does: the kernel clears and maps each of them. The
versions of a run have one layout, so the files of the last one that was pruned, still mapped, serve the next draft.

Nobody may see a file change. A reader takes a shared lock on a file before it maps it, and then looks whether the file
still has its name (`hold`). A version first loses its name, then its locks are tried. So either the reader finds the
name gone, or its lock is found and the file is left to it. A reader that dies loses its locks.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import shutil
import threading
from pathlib import Path
from typing import IO, NamedTuple

SPARE_SUFFIX = ".spare"


class Mapped(NamedTuple):
    """A file of a draft or version."""

    memory: mmap.mmap
    inode: int


class Spares:
    """What this process mapped: the files of versions that it wrote, and at most one version's worth of spare ones.

    Spare files lie in a directory `tmp-*` that is locked as a draft's is, so they are swept if this process dies.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()  # epochs are threads
        self._written: dict[Path, dict[str, Mapped]] = {}
        self._spare: dict[str, Mapped] = {}
        self._directory: Path | None = None
        self._lock = -1

    def keep(self, version: Path, files: dict[str, Mapped]) -> None:
        """These are the files of a version that is complete now."""
        with self._mutex:
            self._written[version] = files

    def forget(self, version: Path) -> None:
        with self._mutex:
            self._written.pop(version, None)

    def retire(self, version: Path) -> bool:
        """Make its files the spare ones. False if it must be removed: written by another process, or being read."""
        with self._mutex:
            files = self._written.pop(version, None)
            if not files:
                return False
            aside = version.with_name(f"tmp-{version.name}{SPARE_SUFFIX}")
            with contextlib.suppress(OSError):
                self._remove()
                self._lock = os.open(version, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                version.rename(aside)
                self._directory = aside
                if all(_is_free(aside / name, mapped.inode) for name, mapped in files.items()):
                    self._spare = files
                    return True
            self._remove()
            return False

    def take(self, file: str, num_bytes: int, directory: Path) -> Mapped | None:
        """The spare file of that name and size, moved to `directory`. If it does not fit, the layout is another one."""
        with self._mutex:
            mapped = self._spare.pop(file, None)
            if self._directory is not None and mapped is not None and len(mapped.memory) == num_bytes:
                with contextlib.suppress(OSError):
                    (self._directory / file).rename(directory / file)
                    return mapped
            self._remove()  # its room may be needed
            return None

    def drop_lost(self) -> None:
        """Let go of versions that others removed: their memory is free once nobody maps it."""
        with self._mutex:
            self._written = {version: files for version, files in self._written.items() if version.exists()}

    def clear(self) -> None:
        with self._mutex:
            self._written.clear()
            self._remove()

    def _remove(self) -> None:
        self._spare = {}
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def hold(file: IO[bytes], path: Path) -> None:
    """Keep the file as it is for as long as a mapping of it lives: a mapping keeps its file open, and so its lock."""
    fcntl.flock(file, fcntl.LOCK_SH)
    if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
        raise FileNotFoundError(path)


def _is_free(path: Path, inode: int) -> bool:
    """Is it the file that this process mapped, and does nobody read it? Of a file without its name, once is enough."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_ino != inode:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
