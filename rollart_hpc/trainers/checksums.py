"""Finds damage to a checkpoint. Owns the files with the checksums; knows nothing of the contents.

    files_<rank>.json    size and xxh3 of the files that a rank wrote
    trainer.json         version, digest, number of ranks and the checksum of all the above: written last

torch.distributed.checkpoint does not notice flipped bits, so all checksums are verified before anything is loaded.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import xxhash

from rollart_hpc.checkpoint_dirs import damage_errors, damaged
from rollart_hpc.errors import SiteError
from rollart_hpc.files import FILE_MODE, disk_errors, sync, sync_directory, write_atomic

FORMAT = 1
HEAD = "trainer.json"
_BLOCK_BYTES = 1 << 20


class FileChecksum(msgspec.Struct, frozen=True, array_like=True):
    num_bytes: int
    checksum: str


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Identifies the weights in a checkpoint."""

    version: int
    digest: str
    ranks: int
    has_stepped: bool  # otherwise there is no optimizer state
    format: int = FORMAT
    checksum: str = ""  # of all files_<rank>.json and of this struct with an empty checksum


def write_files(directory: Path, rank: int, names: list[str]) -> None:
    """What libraries wrote is on the disk when this returns."""
    for name in names:
        (directory / name).chmod(FILE_MODE)
    with disk_errors(directory):
        for name in names:
            sync(directory / name)
        checksums = {name: _checksum_of(directory / name) for name in sorted(names)}
        sync_directory(directory)
    write_atomic(_list_of(directory, rank), msgspec.json.encode(checksums))


def write_head(directory: Path, head: Head) -> None:
    whole = msgspec.structs.replace(head, checksum=_checksum_of_all(directory, head))
    write_atomic(directory / HEAD, msgspec.json.encode(whole))


def check(directory: Path, rank: int, ranks: int) -> Head:
    """Verify every `ranks`-th file, starting at `rank`. Raises SiteError if anything does not match."""
    with damage_errors(directory.parent):
        head = msgspec.json.decode((directory / HEAD).read_bytes(), type=Head)
        if head.format != FORMAT:
            fix = "resume with the rollart-hpc version that wrote it, or remove this checkpoint"
            raise SiteError(f"checkpoint {directory} has format {head.format}, expected {FORMAT}", fix)
        if _checksum_of_all(directory, head) != head.checksum:
            raise damaged(directory.parent, "the checksum of its file lists does not match")
        lists = [_list_of(directory, r).read_bytes() for r in range(head.ranks)]
        files = [
            item for content in lists for item in msgspec.json.decode(content, type=dict[str, FileChecksum]).items()
        ]
        for name, expected in sorted(files)[rank::ranks]:
            if _checksum_of(directory / name) != expected:
                raise damaged(directory.parent, f"the checksum of {name} does not match")
    return head


def _list_of(directory: Path, rank: int) -> Path:
    return directory / f"files_{rank}.json"


def _read_list(directory: Path, rank: int) -> dict[str, FileChecksum]:
    return msgspec.json.decode(_list_of(directory, rank).read_bytes(), type=dict[str, FileChecksum])


def _checksum_of_all(directory: Path, head: Head) -> str:
    hasher = xxhash.xxh3_64(msgspec.json.encode(msgspec.structs.replace(head, checksum="")))
    for rank in range(head.ranks):
        hasher.update(_list_of(directory, rank).read_bytes())
    return hasher.hexdigest()


def _checksum_of(path: Path) -> FileChecksum:
    hasher = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            hasher.update(block)
        return FileChecksum(file.tell(), hasher.hexdigest())
