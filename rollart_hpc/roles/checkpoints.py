"""Checkpoints of a run in two phases. Owns `step_N.tmp` -> `step_N`; the trainer writes its part itself.

The controller's part (core.json, buffer.bin) and the trainer's part share a directory. It is renamed
last, so a resume never sees a partial checkpoint. Only then are older checkpoints removed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import xxhash

from rollart_hpc.errors import SiteError
from rollart_hpc.files import make_directory, sync, write_json
from rollart_hpc.roles.payloads import Payloads
from rollart_hpc.rundir import COMMITTED, RunDir

CORE, BUFFER = "core.json", "buffer.bin"


def begin(run: RunDir, snapshot: dict[str, Any], payloads: Payloads) -> Path:
    """Write the controller's part. Returns the directory to which the trainer adds its part."""
    directory = run.unfinished_checkpoint(snapshot["version"])
    shutil.rmtree(directory, ignore_errors=True)
    make_directory(directory)
    write_json(directory / CORE, snapshot)
    members = [member["id"] for group in snapshot["groups"] for member in group["members"]]
    payloads.save(directory / BUFFER, members)
    return directory


def commit(run: RunDir, version: int, attempt: int, keep: int) -> Path:
    directory, final = run.unfinished_checkpoint(version), run.checkpoint(version)
    sync(run.ledger)  # steps after the newest checkpoint may get lost, these may not
    checksums = {name: _checksum(directory / name) for name in (CORE, BUFFER)}
    write_json(directory / COMMITTED, {"version": version, "attempt": attempt, "checksums": checksums})
    aside = final.with_suffix(".old")
    if final.exists():  # from a rolled-back attempt
        shutil.rmtree(aside, ignore_errors=True)
        final.rename(aside)
    directory.rename(final)
    shutil.rmtree(aside, ignore_errors=True)
    for old in run.committed_checkpoints()[:-keep]:
        shutil.rmtree(old.path, ignore_errors=True)
    return final


def abandon(run: RunDir, version: int) -> None:
    shutil.rmtree(run.unfinished_checkpoint(version), ignore_errors=True)


def load(directory: Path, payloads: Payloads) -> dict[str, Any]:
    """Returns the core's snapshot and loads buffered payloads into `payloads`. Verifies all checksums first."""
    try:
        checksums = json.loads((directory / COMMITTED).read_text())["checksums"]
        for name in (CORE, BUFFER):
            if checksums[name] != _checksum(directory / name):
                raise ValueError(f"the checksum of {name} does not match")
        snapshot: dict[str, Any] = json.loads((directory / CORE).read_text())
        payloads.load(directory / BUFFER)
    except (OSError, ValueError, KeyError, TypeError) as error:
        fix = "remove this checkpoint to resume from the one before it"
        raise SiteError(f"checkpoint {directory} is damaged: {error}", fix) from None
    return snapshot


def _checksum(path: Path) -> str:
    return xxhash.xxh3_128_hexdigest(path.read_bytes())
