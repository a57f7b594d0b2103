"""Enforced memory and GPUs (`up --constrain`): whether the machine can, and the cgroups that are left at the end.

Slurm's cgroup plugin needs the controllers of cgroup v1. It names groups after nodes, so only one cluster at a time can
have nodes of the same names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")
_CONTROLLERS = ("memory", "devices", "freezer")
FAKE_MAJOR = 240  # for local use: no driver answers, so an allowed device is told from a forbidden one


def why_not_constrain(nodes: Iterable[str] = ()) -> str:
    """Empty if the machine can."""
    missing = [name for name in _CONTROLLERS if not os.access(_ROOT / name / "cgroup.procs", os.W_OK)]
    if missing:
        return f"cgroup v1 is not mounted for {', '.join(missing)} in {_ROOT}"
    taken = next(groups_of(nodes), None)
    return f"{taken} belongs to another cluster" if taken else ""


def groups_of(nodes: Iterable[str]) -> Iterator[Path]:
    for node in nodes:
        yield from _ROOT.glob(f"*/slurm_{node}")


def remove_groups(nodes: Iterable[str]) -> None:
    """Their processes have ended."""
    for group in groups_of(nodes):
        for place, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):
                os.rmdir(place)
