"""Writes the files of a run: atomically, private to the user, with a clear error when the disk refuses.

Owns file modes, atomic replacement and the messages for disk errors. Knows no file names (`rundir` does).
"""

from __future__ import annotations

import errno
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rollart_hpc.errors import SiteError

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

_FIXES = {
    errno.ENOSPC: "free some space, or choose another {place}",
    errno.EDQUOT: "your disk quota is used up: free some space, or choose another {place}",
    errno.EROFS: "the file system is read-only: choose another {place}",
    errno.EACCES: "you may not write there: choose another {place}",
    errno.EPERM: "you may not write there: choose another {place}",
    errno.EIO: "the disk reports errors: choose another {place}",
    errno.ENOENT: "the directory does not exist: choose another {place}",
    errno.ENOTDIR: "a part of the path is a file, not a directory: choose another {place}",
    errno.ENAMETOOLONG: "choose a shorter {place}",
}
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def disk_errors(path: Path, place: str = "--run-dir") -> Iterator[None]:
    """Turn the error of a full, read-only, forbidden or missing path into a `SiteError`; other OSErrors pass.

    `place`: the option or setting that the user can change, e.g. --run-dir.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FIXES:
            raise
        fix = _FIXES[error.errno].format(place=place)
        raise SiteError(f"can't write {path}: {error.strerror}", fix) from None


def make_directory(path: Path, place: str = "--run-dir") -> Path:
    """`mkdir -p`, private to the user."""
    with disk_errors(path, place):
        path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    return path


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace `path` atomically: a reader sees either the old or the new content, even after a crash."""
    data = content.encode() if isinstance(content, str) else content
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with disk_errors(path):
        try:
            handle = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
            with open(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, path)
        except BaseException:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)
            raise


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=1) + "\n")


def read_json(path: Path) -> Any | None:
    """The content of a JSON file; None if the file does not exist. A file that does not parse is a `SiteError`."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise SiteError(f"{path} is damaged: {error}", "restore it from a backup, or remove it") from None


def mend(path: Path) -> None:
    """Terminate a torn last line, so that the next write starts a new line."""
    with disk_errors(path), suppress(FileNotFoundError), path.open("rb+") as file:
        if file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n":
            file.write(b"\n")


def append_line(path: Path, line: str, *, sync: bool = False) -> None:
    """Append one line to a file of records in a single write. `sync`: the line is on disk when this returns."""
    with disk_errors(path):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
        try:
            data = line.rstrip("\n").encode() + b"\n"
            if os.write(handle, data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)


def sync(path: Path) -> None:
    """What was written to this file, if there is one, is on the disk when this returns."""
    if path.exists():
        with disk_errors(path), open(path, "rb") as file:
            os.fsync(file.fileno())


def point(link: Path, target: Path) -> None:
    """Make `link` a relative symlink to `target`, atomically replacing an existing link."""
    scratch = link.with_name(f".{link.name}.{secrets.token_hex(4)}")
    with disk_errors(link):
        os.symlink(os.path.relpath(target, link.parent), scratch)
        os.replace(scratch, link)
