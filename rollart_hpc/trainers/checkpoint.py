"""Writes and reads a checkpoint on all ranks together. Owns the order of phases; knows nothing of the contents.

Ranks agree after every phase, so a failed rank never leaves the others waiting.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from rollart_hpc.errors import SiteError
from rollart_hpc.files import library_writes, make_directory
from rollart_hpc.trainers import checksums
from rollart_hpc.trainers.world import World

log = logging.getLogger(__name__)


def save(
    directory: Path, world: World, head: checksums.Head, write: Callable[[], list[str]], num_bytes: int = 0
) -> None:
    """`write` returns the names of the files that this rank wrote. `num_bytes`: about how much; 0 = unknown."""

    def write_files() -> None:
        with library_writes(directory, num_bytes):
            names = write()
        checksums.write_files(directory, world.rank, names)

    def finish() -> None:
        if world.rank == 0:
            checksums.write_head(directory, head)

    _together(world, directory, lambda: make_directory(directory))
    _together(world, directory, write_files)
    _together(world, directory, finish)


def load(directory: Path, world: World, read: Callable[[checksums.Head], object]) -> checksums.Head:
    """Changes nothing before all files are verified. The caller compares the digest afterwards."""
    heads: list[checksums.Head] = []
    _together(world, directory, lambda: heads.append(checksums.check(directory, world.rank, world.size)))
    (head,) = heads
    _together(world, directory, lambda: read(head))
    return head


def _together(world: World, directory: Path, action: Callable[[], object]) -> None:
    """All ranks succeed, or all raise SiteError."""
    problem: SiteError | None = None
    try:
        action()
    except SiteError as error:
        problem = error
    except (Exception, CheckpointException) as error:  # torch wraps the errors of a rank in its own types
        log.debug("checkpoint %s failed", directory, exc_info=error)
        problem = SiteError(f"checkpoint {directory}: {_innermost(error)}")
    world.all_good(problem)


def size_of(tensors: Any) -> int:
    """Bytes of this rank's part of nested tensors."""
    if isinstance(tensors, dict):
        return sum(size_of(value) for value in tensors.values())
    if isinstance(tensors, (list, tuple)):
        return sum(size_of(value) for value in tensors)
    local = tensors.to_local() if isinstance(tensors, DTensor) else tensors
    return local.numel() * local.element_size() if isinstance(local, torch.Tensor) else 0


def _innermost(error: BaseException) -> str:
    failures = error.failures if isinstance(error, CheckpointException) else {}
    if failures:
        error = next(iter(failures.values()))[0]
    first_line = (str(error) or "no details").splitlines()[0]
    return f"{type(error).__name__}: {first_line[:300]}"
