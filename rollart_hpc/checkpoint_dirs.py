"""The directories of checkpoints: which count, and what becomes of the others. Owns their marks, renames and removal.

    step_N.tmp   being written; if it is marked, it is complete and only its last rename is missing
    step_N       counts once it holds committed.json, which lists the size of every file
    step_N.old   being removed: a rename takes a checkpoint out of the list before its first file goes
    step_N.bad   found to be damaged; kept for a look until newer ones have been saved

So a crash at any point leaves a good checkpoint, or something that `sweep` removes or completes. Knows nothing of the
contents: controller and trainer each verify the checksums of their part.
"""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from rollart_hpc.errors import DamagedError, SiteError
from rollart_hpc.files import disk_errors, move, sync_directory, write_json
from rollart_hpc.rundir import COMMITTED, RunDir

OLD, BAD = ".old", ".bad"
WHY = "why.json"  # in step_N.bad


@contextmanager
def damage_errors(directory: Path) -> Iterator[None]:
    """Tell damage from trouble: only what proves damage is a DamagedError, because such a checkpoint is set aside.

    A file that is missing proves nothing if the whole checkpoint is out of sight: its file system may not be there.
    """
    try:
        yield
    except FileNotFoundError as error:
        missing = f"{Path(error.filename).name} is missing"
        if not (directory / COMMITTED).is_file():
            what = f"checkpoint {directory} is damaged or incomplete, or can't be seen from this node: {missing}"
            raise SiteError(what, "check its file system, or remove it to continue from the one before it") from None
        raise damaged(directory, missing) from None
    except OSError as error:
        if error.errno == errno.EIO:
            raise damaged(directory, str(error)) from None
        raise SiteError(f"checkpoint {directory} can't be read: {error}", "check its file system") from None
    except (ValueError, KeyError, TypeError, msgspec.DecodeError) as error:
        raise damaged(directory, str(error)) from None


def damaged(directory: Path, detail: str) -> DamagedError:
    fix = "the run continues from the one before it, if that is good"
    return DamagedError(f"checkpoint {directory} is damaged or incomplete: {detail}", fix)


def seal(directory: Path, head: dict[str, Any]) -> None:
    """Mark a directory as complete, once everything in it is on the disk."""
    with disk_errors(directory):
        for place in [directory, *(p for p in directory.rglob("*") if p.is_dir())]:
            sync_directory(place)
        write_json(directory / COMMITTED, {**head, "files": sizes(directory)})
        sync_directory(directory)


def sizes(directory: Path) -> dict[str, int]:
    found = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != COMMITTED)
    return {str(path.relative_to(directory)): path.stat().st_size for path in found}


def check_sizes(directory: Path) -> dict[str, Any]:
    """The content of the mark. Raises DamagedError if a file is missing or its size has changed."""
    with damage_errors(directory):
        head: dict[str, Any] = json.loads((directory / COMMITTED).read_text())
        for name, size in dict(head.get("files", {})).items():
            found = (directory / name).stat().st_size
            if found != size:
                raise damaged(directory, f"{name} has {found} bytes, expected {size}")
    return head


def publish(run: RunDir, step: int) -> Path:
    """Make a marked step_N.tmp the checkpoint of its step. One of a rolled-back attempt gives way."""
    final = run.checkpoint(step)
    if final.exists():
        _take_out(final)
    move(run.unfinished_checkpoint(step), final)
    return final


def prune(run: RunDir, keep: int) -> None:
    """Remove all but the newest `keep`, and damaged ones that are older than those."""
    good = run.committed_checkpoints()
    for old in good[:-keep]:
        shutil.rmtree(_take_out(old.path), ignore_errors=True)
    oldest = good[-keep:][0].step if good else 0
    for step, path in bad(run):
        if len(good) >= keep and step <= oldest:
            shutil.rmtree(path, ignore_errors=True)
    for path in run.checkpoints.glob(f"step_*{OLD}"):
        shutil.rmtree(path, ignore_errors=True)


def _take_out(path: Path) -> Path:
    aside = path.with_name(path.name + OLD)
    shutil.rmtree(aside, ignore_errors=True)
    move(path, aside)
    return aside


def set_aside(path: Path, reason: str) -> None:
    """This checkpoint is damaged: the one before it counts from now on. Needs no space on the disk."""
    aside = path.with_name(path.name + BAD)
    shutil.rmtree(aside, ignore_errors=True)
    if not path.exists():  # another rank was faster
        return
    with suppress(OSError, SiteError):  # a disk that refuses this keeps the next start from going on, which says so
        move(path, aside)
        write_json(aside / WHY, {"reason": reason})


def bad(run: RunDir) -> list[tuple[int, Path]]:
    """Damaged checkpoints, oldest first."""
    found = ((re.fullmatch(rf"step_(\d+)\{BAD}", path.name), path) for path in run.checkpoints.glob(f"step_*{BAD}"))
    return sorted((int(match[1]), path) for match, path in found if match)


def reason_of(path: Path) -> str:
    try:
        return str(json.loads((path / WHY).read_text())["reason"])
    except (OSError, ValueError, KeyError, TypeError):
        return "no reason was recorded"


def sweep(run: RunDir) -> list[str]:
    """Complete or remove what a crash left behind. Call it only while no controller of this run is alive.

    Returns what was done, one sentence each. Never fails: what can't be removed now is left for the next sweep.
    """
    done: list[str] = []
    for path in sorted(run.checkpoints.glob("step_*")):
        match = re.fullmatch(r"step_(\d+)(\.tmp|\.old|)", path.name)
        if match is None or (not match[2] and (path / COMMITTED).is_file()):
            continue
        with suppress(OSError, SiteError):
            if match[2] == ".tmp" and _is_whole(path):
                publish(run, int(match[1]))
                done.append(f"completed the checkpoint of step {match[1]}")
            else:
                done.append(f"removed what was left of {path.name}")
                shutil.rmtree(path, ignore_errors=True)
    for path in run.checkpoints.glob(f"step_*{OLD}"):
        shutil.rmtree(path, ignore_errors=True)
    return done


def _is_whole(path: Path) -> bool:
    """Whether a directory that was being written is marked, and everything that the mark lists is there."""
    if not (path / COMMITTED).is_file():
        return False
    try:
        return bool(check_sizes(path).get("files"))
    except SiteError:
        return False


def must_have_one(run: RunDir) -> None:
    """Damaged checkpoints alone are no reason to begin again from the base model: that is for the user to decide."""
    damaged_ones = bad(run)
    if damaged_ones and run.newest_checkpoint() is None:
        listed = "; ".join(f"{path}: {reason_of(path)}" for _, path in damaged_ones)
        fix = "restore one from a backup (and rename it to step_N), or remove them to begin from the base model"
        raise SiteError(f"every checkpoint of this run is damaged: {listed}", fix)


def origin(run: RunDir) -> str:
    """From what the next attempt begins, in words."""
    newest = run.newest_checkpoint()
    newer = [(step, path) for step, path in bad(run) if newest is None or step > newest.step]
    skipped = "".join(f"; that of step {step} is damaged: {reason_of(path)}" for step, path in newer)
    return (f"from the checkpoint of step {newest.step}" if newest else "from the base model") + skipped
