"""Reuses bucket files of pruned versions. Owns the memory that this process mapped for drafts; knows no tensors.

Fresh pages of shared memory cost several times as much as filling them, because the kernel clears and maps each one.
All versions of a run have the same layout, so the next draft reuses the files of the last pruned version, still mapped.

No reader may see a file change. A reader takes a shared lock on a file before it maps it, and then checks that the
file still has its name (`hold`). To retire a version we first rename it and then test its locks. So either the reader
finds the name gone, or we find its lock and leave the file alone. A reader that dies loses its locks.
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
    """The files this process mapped: those of versions it wrote, and at most one version's worth of spare files.

    Spare files are in a directory `tmp-*`, locked like a draft's, so they are swept if this process dies.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()  # epochs are threads
        self._written: dict[Path, dict[str, Mapped]] = {}
        self._spare: dict[str, Mapped] = {}
        self._directory: Path | None = None
        self._lock = -1

    def keep(self, version: Path, files: dict[str, Mapped]) -> None:
        """Register the files of a version that is now complete."""
        with self._mutex:
            self._written[version] = files

    def forget(self, version: Path) -> None:
        with self._mutex:
            self._written.pop(version, None)

    def retire(self, version: Path) -> bool:
        """Turn its files into spares. False: remove it instead; another process wrote it or someone reads it."""
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
        """The spare file of that name and size, moved to `directory`. None: the layout has changed, or no spare."""
        with self._mutex:
            mapped = self._spare.pop(file, None)
            if self._directory is not None and mapped is not None and len(mapped.memory) == num_bytes:
                with contextlib.suppress(OSError):
                    (self._directory / file).rename(directory / file)
                    return mapped
            self._remove()  # frees its memory, which may be needed
            return None

    def drop_lost(self) -> None:
        """Unmap versions that others removed: their memory is freed once nobody maps it."""
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
    """Protect the file from reuse while a mapping of it exists: a mapping keeps the file open, and with it the lock."""
    fcntl.flock(file, fcntl.LOCK_SH)
    if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
        raise FileNotFoundError(path)


def _is_free(path: Path, inode: int) -> bool:
    """True if this process mapped the file and nobody reads it. It has lost its name, so no new reader can appear."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_ino != inode:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
