"""The nodes and partitions of a development cluster, as a layout file describes them. Writes and starts nothing."""

from __future__ import annotations

import random
import re
import socket
import tomllib
from collections.abc import Container
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollart_hpc.errors import SiteError, UserError

_PACKAGE = Path(__file__).resolve().parent.parent
_TEMPLATES = (_PACKAGE / "slurm" / "devcluster", _PACKAGE.parent / "slurm" / "devcluster")  # installed, checkout
_PORTS = range(20000, 32000)  # below the ephemeral ports of the OS
_PREFIX = re.compile(r"[a-z][a-z0-9-]*", re.IGNORECASE)
_WORD = re.compile(r"[^\s=,#]+")  # slurm.conf has no quoting
_NODE_KEYS = {"prefix", "count", "cpus", "memory_mb", "gpu", "gpus"}
_PARTITION_KEYS = {"name", "nodes", "options"}
DEFAULT = "default"
MOST_NODES = 1000


@dataclass(frozen=True)
class Node:
    name: str
    cpus: int
    memory_mb: int
    gpu: str
    gpus: int
    port: int


@dataclass(frozen=True)
class Partition:
    """`nodes`: as slurm.conf wants them. `options`: its further options there."""

    name: str
    nodes: str
    options: dict[str, str]


@dataclass(frozen=True)
class Topology:
    nodes: list[Node]
    partitions: list[Partition]


def templates() -> Path:
    for directory in _TEMPLATES:
        if directory.is_dir():
            return directory
    raise SiteError("the installation has no slurm/devcluster", "install rollart-hpc again, or use a checkout")


def read_topology(layout: str = DEFAULT, count: int = 0) -> Topology:
    """The nodes, each with a free port, and the partitions of a layout: a name in slurm/devcluster/layouts, or a file.

    `count`: nodes in all, shared out as in the layout; 0 = as many as it says.
    """
    path = _find(layout)
    try:
        found = tomllib.loads(path.read_text())
        kinds, partitions = found["nodes"], found["partitions"]
        _check(kinds, partitions)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is no layout: {error}", f"compare it with {_find(DEFAULT)}") from None
    counts = _share_out([kind["count"] for kind in kinds], count)
    wanted = [(kind, i) for kind, many in zip(kinds, counts) for i in range(1, many + 1)]
    nodes = [
        Node(f"{kind['prefix']}{i}", kind["cpus"], kind["memory_mb"], kind.get("gpu", ""), kind.get("gpus", 0), port)
        for (kind, i), port in zip(wanted, free_ports(len(wanted)))
    ]
    names = {kind["prefix"]: f"{kind['prefix']}[1-{many}]" for kind, many in zip(kinds, counts)}
    return Topology(nodes, [_partition(each, names) for each in partitions])


def _find(layout: str) -> Path:
    known = templates() / "layouts"
    path = Path(layout) if "/" in layout or layout.endswith(".toml") else known / f"{layout}.toml"
    if not path.is_file():
        names = ", ".join(sorted(found.stem for found in known.glob("*.toml")))
        raise UserError(f"there is no layout {layout!r}", f"use one of {names}, or the path of a TOML file")
    return path


def _check(kinds: list[dict[str, Any]], partitions: list[dict[str, Any]]) -> None:
    prefixes = [kind["prefix"] for kind in kinds]
    for kind in kinds:
        if unknown := kind.keys() - _NODE_KEYS:
            raise ValueError(f"unknown key {min(unknown)!r} of nodes; known are {', '.join(sorted(_NODE_KEYS))}")
        if not _PREFIX.fullmatch(kind["prefix"]) or prefixes.count(kind["prefix"]) > 1:
            raise ValueError(f"prefix {kind['prefix']!r} must be unique, and of letters, digits and '-'")
        if bool(kind.get("gpu")) != bool(kind.get("gpus")) or min(kind["count"], kind["cpus"], kind["memory_mb"]) < 1:
            raise ValueError(f"{kind['prefix']}: count, cpus and memory_mb from 1 on, gpu and gpus both or neither")
    for each in partitions:
        if unknown := each.keys() - _PARTITION_KEYS:
            raise ValueError(f"unknown key {min(unknown)!r} of partitions")
        if foreign := set(each.get("nodes", [])) - set(prefixes):
            raise ValueError(f"partition {each['name']!r}: there are no nodes {min(foreign)!r}")
        for word in (each["name"], *each.get("options", {}), *each.get("options", {}).values()):
            if not _WORD.fullmatch(str(word)):
                raise ValueError(f"partition {each['name']!r}: slurm.conf can't contain {str(word)!r} there")


def _share_out(counts: list[int], total: int) -> list[int]:
    """Whole numbers in the proportions of `counts` that add up to `total`, each at least 1."""
    if not total:
        return counts
    if not len(counts) <= total <= MOST_NODES:
        raise UserError(f"--nodes {total}: from {len(counts)} (one of each kind) to {MOST_NODES}")
    shares = [1] * len(counts)
    for _ in range(total - len(counts)):
        poorest = min(range(len(counts)), key=lambda i: shares[i] / counts[i])
        shares[poorest] += 1
    return shares


def _partition(each: dict[str, Any], names: dict[str, str]) -> Partition:
    nodes = ",".join(names[prefix] for prefix in each["nodes"]) if each.get("nodes") else "ALL"
    return Partition(each["name"], nodes, {name: str(value) for name, value in each.get("options", {}).items()})


def free_ports(count: int, taken: Container[int] = ()) -> list[int]:
    """Unused ports of 127.0.0.1, none of `taken`. They are not reserved, so another process may take them first."""
    found: list[int] = []
    with ExitStack() as stack:
        for port in random.sample(_PORTS, len(_PORTS)):
            if len(found) == count:
                break
            if port in taken:
                continue
            probe = stack.enter_context(socket.socket())
            try:
                probe.bind(("", port))
            except OSError:
                continue
            found.append(port)
    if len(found) < count:
        what = f"fewer than {count} free ports in {_PORTS.start}-{_PORTS.stop - 1}"
        raise SiteError(what, "end some of the processes that listen there")
    return found
