"""Creates a model directory atomically: complete, or not at all. Does not know what is in it."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.files import library_writes, make_directory

PLACE = "directory for the model"


@contextmanager
def made_whole(target: Path, num_bytes: int) -> Iterator[Path]:
    """Yields a scratch directory next to `target`; its subdirectory `model` becomes `target` at the end.

    `num_bytes`: the maximum disk space needed. Leaves nothing behind if the body fails.
    """
    target = target.absolute()
    if target.exists() or target.is_symlink():
        raise UserError(f"{target} already exists", f"remove it, or choose another {PLACE}")
    make_directory(target.parent, PLACE)
    free = shutil.disk_usage(target.parent).free
    if free < num_bytes:
        need, have = (f"{count / (1 << 20):.0f} MB" for count in (num_bytes, free))
        raise SiteError(
            f"{target.parent} has {have} free, the model needs {need}", f"free some space, or choose another {PLACE}"
        )
    scratch = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    make_directory(scratch, PLACE)
    try:
        with library_writes(target, num_bytes, PLACE):
            yield scratch
            _take_place(scratch / "model", target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _take_place(made: Path, target: Path) -> None:
    try:
        os.rename(made, target)
    except OSError:
        if target.exists():  # since the check
            raise UserError(f"{target} already exists", f"remove it, or choose another {PLACE}") from None
        raise
