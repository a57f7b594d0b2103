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
from typing import Any, BinaryIO

from rollart_hpc.descriptors import with_relief
from rollart_hpc.errors import RollartError, SiteError

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
    errno.EMFILE: "raise the limit of open files (`ulimit -Hn`, or limits.conf)",
    errno.ENFILE: "the machine has no file handle left: raise fs.file-max, or end other programs",
}
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_PROBE_BYTES = 1 << 20


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
        left = f" ({_size(_free(path))} free)" if error.errno in DISK_FULL else ""
        raise SiteError(f"can't write {path}: {error.strerror}{left}", fix) from None


@contextmanager
def library_writes(path: Path, num_bytes: int = 0, place: str = "--run-dir") -> Iterator[None]:
    """Like `disk_errors`, around a library that reports a full disk as something else: torch as an unexpected position
    in a file, safetensors as an error of its own. `num_bytes`: what it is about to write below `path`; 0 = unknown.
    """
    free_bytes = _free(path)
    try:
        with disk_errors(path, place):
            yield
    except (RollartError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # torch's own errors of checkpoints are not Exceptions
        if not _is_full(path, str(error)):
            raise
        missing = f", {_size(num_bytes - free_bytes)} are missing" if num_bytes > free_bytes else ""
        needs = f"{_size(num_bytes)} were to be written, " if num_bytes else ""
        what = f"the disk is full: can't write {path} ({needs}{_size(free_bytes)} were free{missing})"
        raise SiteError(what, _FIXES[errno.ENOSPC].format(place=place)) from error


def _is_full(path: Path, said: str) -> bool:
    """Asks the disk itself: a quota shows only when something is written."""
    if any(os.strerror(code) in said for code in DISK_FULL):
        return True
    place = next(each for each in (path, *path.parents) if each.is_dir())
    probe = place / f".full-{secrets.token_hex(4)}"
    try:
        with open(probe, "wb") as file:
            file.write(os.urandom(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno in DISK_FULL
    finally:
        with suppress(OSError):
            probe.unlink()
    return False


def _free(path: Path) -> int:
    """Bytes that this user may still write there; 0 if unknown."""
    for place in (path, *path.parents):
        with suppress(OSError):
            found = os.statvfs(place)
            return found.f_bavail * found.f_frsize
    return 0


def _size(num_bytes: int) -> str:
    """
    >>> _size(2_500_000_000), _size(704)
    ('2.5 GB', '704 B')
    """
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} B"


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
            handle = with_relief(lambda: os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE))
            with open(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, path)
        except BaseException:
            with suppress(OSError):
                scratch.unlink(missing_ok=True)
            raise


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write piece by piece. It replaces `path` if the block ends without an error."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with disk_errors(path):
        try:
            with open(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE), "wb") as file:
                yield file
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
    with disk_errors(path), suppress(FileNotFoundError), with_relief(lambda: path.open("rb+")) as file:
        if file.seek(0, os.SEEK_END) and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n":
            file.write(b"\n")


def append_line(path: Path, line: str, *, sync: bool = False) -> None:
    """Append one line to a file of records in a single write. `sync`: the line is on disk when this returns."""
    with disk_errors(path):
        handle = with_relief(lambda: os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE))
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
        with disk_errors(path), with_relief(lambda: open(path, "rb")) as file:
            os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Files that were created, renamed or removed in this directory stay so after a power failure."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that has no such thing
            raise
    finally:
        os.close(handle)


def move(source: Path, target: Path) -> None:
    """Rename within one directory. It is on the disk when this returns."""
    with disk_errors(target):
        os.rename(source, target)
        sync_directory(target.parent)


def point(link: Path, target: Path) -> None:
    """Make `link` a relative symlink to `target`, atomically replacing an existing link."""
    scratch = link.with_name(f".{link.name}.{secrets.token_hex(4)}")
    with disk_errors(link):
        os.symlink(os.path.relpath(target, link.parent), scratch)
        os.replace(scratch, link)
