"""Reads `ledger.jsonl`: which steps survived, and whether each trajectory trained at most once in them.

A line is one committed step. After a restore, the lines after the restored version are void: a later line with the
same or an earlier version replaces them. The remaining lines are the surviving chain. They must link up: every line's
parent digest is the digest of the line before.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path

import msgspec


class Line(msgspec.Struct):
    attempt: int
    step: int
    version: int
    parent_digest: str
    digest: str
    groups: list[int]
    trajectories: list[str]
    start_versions: list[int]


def read(path: Path) -> list[Line]:
    """All complete lines, in the order they were written. Skips a line that a power failure tore: its step was never
    announced, so either the chain continues without it or `problems` finds the gap."""
    lines: list[Line] = []
    for row in filter(None, path.read_bytes().split(b"\n")):
        with suppress(msgspec.DecodeError):
            lines.append(msgspec.json.decode(row, type=Line))
    return lines


def surviving(lines: list[Line]) -> list[Line]:
    """The chain that leads to the newest weights."""
    chain: list[Line] = []
    for line in lines:
        while chain and chain[-1].version >= line.version:
            chain.pop()
        chain.append(line)
    return chain


def problems(lines: list[Line], group_size: int, alpha: int) -> list[str]:
    """Everything that contradicts exactly-once. An empty list proves that it holds."""
    chain = surviving(lines)
    found: list[str] = []
    for before, line in zip([None, *chain], chain, strict=False):
        if before is not None and line.parent_digest != before.digest:
            found.append(f"step {line.step}: its parent is not the weights that step {before.step} made")
        if before is not None and line.version != before.version + 1:
            found.append(f"version {line.version} follows version {before.version}")
        if line.version != line.step + 1:
            found.append(f"step {line.step} made version {line.version}")
        if len(line.trajectories) != group_size * len(line.groups):
            found.append(f"step {line.step}: {len(line.trajectories)} trajectories in {len(line.groups)} groups")
        for name, version in zip(line.trajectories, line.start_versions, strict=True):
            if not line.step - alpha <= version <= line.step:
                found.append(f"step {line.step}: {name} started under version {version}")
    trained = Counter(name for line in chain for name in line.trajectories)
    found += [f"{name} trained {count} times" for name, count in trained.items() if count > 1]
    return found
