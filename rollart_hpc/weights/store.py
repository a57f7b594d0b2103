"""The weights of a node in shared memory. Owns the store's files; knows nothing of who writes or reads them.

    <RunDir.store_root>/<node>/v<attempt>-<version>/{manifest.json, bucket_0.bin, bucket_1.bin, ...}

A complete version appears by one rename, so readers never see a partial one. Readers map the buckets and verify their
checksums before they yield a tensor. A version pruned while it is mapped stays readable. The memory of a pruned version
that nobody reads is reused (`spares`).
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import torch
import xxhash

from rollart_hpc.errors import SiteError
from rollart_hpc.rundir import STORE_OWNER
from rollart_hpc.types import WeightsId
from rollart_hpc.weights.digest import Digest, dtype_name, raw_bytes
from rollart_hpc.weights.draft import Draft, DraftFile, sweep
from rollart_hpc.weights.layout import BadWeights, BucketInfo, Manifest, Packer, TensorInfo
from rollart_hpc.weights.spares import Spares, hold

MANIFEST = "manifest.json"
_VERSION_DIR = re.compile(r"v(\d+)-(\d+)$")
_NODE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*$")


def bucket_name(index: int) -> str:
    return f"bucket_{index}.bin"


def version_dir(weights_id: WeightsId) -> str:
    return f"v{weights_id.attempt}-{weights_id.version}"


class NodeStore:
    """All versions on one node. Several processes of the node may use it at once."""

    def __init__(self, root: Path, node: str) -> None:
        if not _NODE_NAME.match(node):
            raise SiteError(f"node name {node!r} can't be a directory name", "use letters, digits, '.', '-' and '_'")
        self.root = root
        self.directory = root / node
        self._spares = Spares()

    def write(self, weights_id: WeightsId, named: Iterable[tuple[str, torch.Tensor]], bucket_bytes: int) -> Manifest:
        """Write all tensors and make them visible in one operation. Holds one tensor in memory at a time."""
        with self.draft(weights_id) as draft:
            buckets, digest = _write_buckets(draft, named, bucket_bytes)
            manifest = Manifest(weights_id.attempt, weights_id.version, digest, buckets)
            draft.commit(MANIFEST, manifest.encode())
        return manifest

    def draft(self, weights_id: WeightsId) -> Draft:
        """For buckets received from elsewhere; the caller commits."""
        self._ensure()
        return Draft(self.directory, version_dir(weights_id), self._spares)

    def open(self, weights_id: WeightsId) -> StoredWeights:
        return StoredWeights(self.directory / version_dir(weights_id), weights_id)

    def versions(self) -> list[WeightsId]:
        """Complete versions, oldest first."""
        with contextlib.suppress(FileNotFoundError):
            names = (_VERSION_DIR.match(name) for name in os.listdir(self.directory))
            return sorted(WeightsId(int(found[1]), int(found[2])) for found in names if found)
        return []

    def prune(self, keep: int, in_use: Collection[WeightsId] = ()) -> list[WeightsId]:
        """Remove all but the newest `keep` versions, and the drafts of dead writers."""
        versions = self.versions()
        doomed = [v for v in versions[: max(0, len(versions) - keep)] if v not in in_use]
        for weights_id in doomed:
            if not self._spares.retire(self.directory / version_dir(weights_id)):
                self.discard(weights_id)
        self._spares.drop_lost()
        sweep(self.directory)
        return doomed

    def discard(self, weights_id: WeightsId) -> None:
        self._spares.forget(self.directory / version_dir(weights_id))
        shutil.rmtree(self.directory / version_dir(weights_id), ignore_errors=True)

    def claim(self, owner: str) -> None:
        """From now on only `owner` may remove this node's directory."""
        self._ensure()
        scratch = self.directory / f".{STORE_OWNER}-{owner}"
        scratch.touch(mode=0o600)
        scratch.write_text(owner)
        scratch.rename(self.directory / STORE_OWNER)

    def is_owned_by(self, owner: str) -> bool:
        with contextlib.suppress(OSError):
            return (self.directory / STORE_OWNER).read_text() == owner
        return False

    def remove(self) -> None:
        """Remove the node's directory, and the root if this was the last node."""
        self._spares.clear()
        shutil.rmtree(self.directory, ignore_errors=True)
        with contextlib.suppress(OSError):
            self.root.rmdir()

    def _ensure(self) -> None:
        try:
            for directory in (self.root, self.directory):
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                status = directory.lstat()
                if status.st_uid != os.getuid() or status.st_mode & 0o077:
                    raise SiteError(f"{directory} has another owner or is open to others", "remove it")
        except OSError as error:
            raise SiteError(f"can't create the weight store: {error}", "free /dev/shm or set TMPDIR") from None


class StoredWeights:
    """One mapped version. Iterating yields (name, tensor) without a copy; tensors stay valid after `prune`."""

    def __init__(self, directory: Path, weights_id: WeightsId) -> None:
        self.directory = directory
        try:
            self.manifest = Manifest.decode((directory / MANIFEST).read_bytes())
            self._buckets = [_map(directory, i, info) for i, info in enumerate(self.manifest.buckets)]
        except FileNotFoundError:
            raise BadWeights(f"weights {version_dir(weights_id)} are not in {directory.parent}") from None
        if self.manifest.weights_id != weights_id:
            raise BadWeights(f"{directory} holds {self.manifest.weights_id}, expected {weights_id}")
        self._verified: set[int] = set()

    @property
    def num_bytes(self) -> int:
        return self.manifest.num_bytes

    def buckets(self) -> Iterator[tuple[BucketInfo, torch.Tensor]]:
        """Each bucket with its verified bytes."""
        for index, info in enumerate(self.manifest.buckets):
            self._verify(index)
            yield info, self._buckets[index]

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for info, raw in self.buckets():
            yield from views(info, raw)

    def verify(self) -> None:
        """Raise BadWeights unless all checksums match."""
        for index in range(len(self._buckets)):
            self._verify(index)

    def trust(self) -> None:
        """Skip verification: another process of this node has verified the same bytes."""
        self._verified.update(range(len(self._buckets)))

    def _verify(self, index: int) -> None:
        if index not in self._verified:
            check_bucket(self.manifest.buckets[index], self._buckets[index], str(self.directory / bucket_name(index)))
            self._verified.add(index)


def views(info: BucketInfo, raw: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a bucket as views of its bytes."""
    for tensor in info.tensors:
        flat = raw[tensor.offset : tensor.offset + tensor.num_bytes].view(getattr(torch, tensor.dtype))
        yield tensor.name, flat.reshape(tensor.shape)


def check_bucket(info: BucketInfo, raw: torch.Tensor, where: str) -> None:
    found = xxhash.xxh3_64_hexdigest(raw_bytes(raw))
    if found != info.checksum:
        raise BadWeights(f"{where}: checksum {found}, expected {info.checksum}")


def new_bucket(draft: Draft, index: int, num_bytes: int) -> torch.Tensor:
    """A buffer for the bytes of a bucket. It maps the file: filling it writes the file."""
    if num_bytes == 0:
        draft.append(bucket_name(index), b"")
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(draft.allocate(bucket_name(index), num_bytes), dtype=torch.uint8)


def _map(directory: Path, index: int, info: BucketInfo) -> torch.Tensor:
    """The bucket's bytes, mapped privately: nothing is copied, and a reader that writes can't damage the store."""
    path = directory / bucket_name(index)
    with path.open("rb") as file:
        hold(file, path)
        size = os.fstat(file.fileno()).st_size
        if size != info.num_bytes:
            raise BadWeights(f"{path} has {size} bytes, expected {info.num_bytes}")
        if size == 0:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)


def _write_buckets(
    draft: Draft, named: Iterable[tuple[str, torch.Tensor]], bucket_bytes: int
) -> tuple[list[BucketInfo], str]:
    packer, whole = Packer(bucket_bytes), Digest()
    contents: list[list[TensorInfo]] = []
    files: list[DraftFile] = []
    for name, tensor in named:
        raw = raw_bytes(tensor)
        bucket, offset = packer.place(len(raw))
        if bucket == len(files):
            files.append(DraftFile(draft, bucket_name(bucket)))
            contents.append([])
        files[bucket].append(offset, raw)
        contents[bucket].append(TensorInfo(name, dtype_name(tensor.dtype), list(tensor.shape), offset))
        whole.add(name, tensor, raw)
    infos = [BucketInfo(f.num_bytes, f.checksum, tensors) for f, tensors in zip(files, contents, strict=True)]
    return infos, whole.hexdigest()
