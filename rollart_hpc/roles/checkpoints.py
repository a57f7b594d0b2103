"""Checkpoints of a run in two phases: the controller's part, and what happens when one is saved or loaded.

The controller's part (core.json, buffer.bin) and the trainer's part share a directory, which is marked and renamed
last (`checkpoint_dirs`), so a resume never sees a partial checkpoint. Only then are older checkpoints removed.
"""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import xxhash

from rollart_hpc import checkpoint_dirs
from rollart_hpc.errors import DamagedError, SiteError
from rollart_hpc.files import make_directory, sync, write_json
from rollart_hpc.roles.payloads import Payloads
from rollart_hpc.rundir import TRAINER_PART, RunDir

CORE, BUFFER = "core.json", "buffer.bin"

log = logging.getLogger("rollart_hpc.checkpoints")


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
    """Everything is on the disk before the checkpoint counts, and it counts before older ones are removed."""
    directory = run.unfinished_checkpoint(version)
    if not any((directory / TRAINER_PART).glob("*")):
        raise SiteError(f"checkpoint {directory} has no part of the trainer", "see the trainer's log")
    sync(run.ledger)  # steps after the newest checkpoint may get lost, these may not
    checksums = {name: _checksum(directory / name) for name in (CORE, BUFFER)}
    checkpoint_dirs.seal(directory, {"version": version, "attempt": attempt, "checksums": checksums})
    final = checkpoint_dirs.publish(run, version)
    try:
        checkpoint_dirs.prune(run, keep)
    except (OSError, SiteError) as error:  # this one is good; the next save or start removes the rest
        log.warning("could not remove older checkpoints: %s", error)
    return final


def abandon(run: RunDir, version: int) -> None:
    shutil.rmtree(run.unfinished_checkpoint(version), ignore_errors=True)


def load(directory: Path, payloads: Payloads) -> dict[str, Any]:
    """Returns the core's snapshot and loads buffered payloads into `payloads`. Verifies everything else first.

    Of the trainer's part only the sizes: the trainer verifies its checksums.
    """
    checksums = checkpoint_dirs.check_sizes(directory).get("checksums", {})
    with checkpoint_dirs.damage_errors(directory):
        for name in (CORE, BUFFER):
            if checksums[name] != _checksum(directory / name):
                raise ValueError(f"the checksum of {name} does not match")
        snapshot: dict[str, Any] = json.loads((directory / CORE).read_text())
        payloads.load(directory / BUFFER)
    return snapshot


def load_newest(run: RunDir, directory: Path, payloads: Payloads) -> tuple[dict[str, Any], list[str]]:
    """`directory` or, if it is damaged, the newest good one. Returns also what was found damaged, one sentence each."""
    found: list[str] = []
    while True:
        try:
            return load(directory, payloads), found
        except DamagedError as error:
            log.error("%s", error.what)
            checkpoint_dirs.set_aside(directory, error.what)
            found.append(error.what)
            newest = run.newest_checkpoint()
            if newest is None or newest.path == directory:
                checkpoint_dirs.must_have_one(run)
                raise
            directory = newest.path


def _checksum(path: Path) -> str:
    return xxhash.xxh3_128_hexdigest(path.read_bytes())
