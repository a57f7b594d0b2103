"""What a run needs of its supervisor's machine, as resources to watch (`processes.room`). Owns needs and advice."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.launch.process import Child
from rollart_hpc.processes import room
from rollart_hpc.rundir import RunDir

SHARED_MEMORY = Path("/dev/shm")
VERSIONS = 3  # of the weights, in the shared memory of a node


def resources_of(run: RunDir, config: RunConfig, children: Callable[[], list[Child]]) -> list[room.Resource]:
    sizes: dict[Path, int] = {}  # of checkpoints that were measured

    def checkpoint() -> tuple[int, str]:
        newest = run.newest_checkpoint()
        if newest is None:
            return 0, ""
        if newest.path not in sizes:
            sizes.clear()
            sizes[newest.path] = sum(room.used_below(newest.path).values())
        return sizes[newest.path], "the next checkpoint"

    def users() -> str:
        used = room.listed(room.used_below(run.path))
        return f"this run uses {used}" if used else ""

    def largest() -> str:
        held = {child.name: room.resident(child.pid) for child in children() if not child.host and child.pid}
        found = room.listed(held)
        return f"largest processes of this run: {found}" if found else ""

    weights = int(config.model.parameters_b * 1e9 * 4) * VERSIONS
    resources = [
        room.Resource(
            f"the disk of {run.path}", lambda: room.disk(run.path),
            "free some space now: remove old runs or checkpoints; checkpoint.keep=1 needs less",
            checkpoint, users,
        ),
        room.Resource(
            "memory", room.memory, "end other programs, or resume with fewer engines, env.workers or env.slots",
            users=largest,
        ),
        room.Resource(
            f"shared memory ({SHARED_MEMORY})", lambda: room.disk(SHARED_MEMORY),
            f"remove what is left of other programs in {SHARED_MEMORY}, or mount it larger",
            lambda: (weights, f"{VERSIONS} versions of the weights") if weights else (0, ""),
        ),
        room.Resource(
            f"the disk of {tempfile.gettempdir()}", lambda: room.disk(Path(tempfile.gettempdir())),
            "free some space there, or set TMPDIR to another disk",
        ),
    ]  # fmt: skip
    return _once_per_disk(resources, run)


def _once_per_disk(resources: list[room.Resource], run: RunDir) -> list[room.Resource]:
    """The last one is the temporary directory: often the same disk as the run's."""
    try:
        is_same = Path(tempfile.gettempdir()).stat().st_dev == run.path.stat().st_dev
    except OSError:
        return resources
    return resources[:-1] if is_same else resources
