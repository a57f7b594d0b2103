"""Assigns processes to the nodes of a hardware class. Knows neither roles nor partitions.

First fit, in the given order, to use few nodes. All nodes of a component get the same request, so the load is then
evened out as far as possible without another node.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rollart_hpc.errors import UserError

_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Needs:
    """What a process needs of a node, or what a node has."""

    cpus: int = 0
    gpus: int = 0
    memory_gb: float = 0.0

    def __add__(self, other: Needs) -> Needs:
        return Needs(self.cpus + other.cpus, self.gpus + other.gpus, self.memory_gb + other.memory_gb)

    def on_cores(self, threads: int) -> Needs:
        """The same, with CPUs rounded up to whole cores of `threads` threads."""
        return replace(self, cpus=math.ceil(self.cpus / threads) * threads)

    def fits(self, node: Needs) -> bool:
        enough_memory = self.memory_gb <= node.memory_gb + _TOLERANCE
        return self.cpus <= node.cpus and self.gpus <= node.gpus and enough_memory

    def __str__(self) -> str:
        parts = [f"{self.cpus} CPUs", f"{self.gpus} GPUs", f"{self.memory_gb:g} GB"]
        return ", ".join(parts[: 3 if math.isfinite(self.memory_gb) else 2])


@dataclass(frozen=True)
class Pack:
    """A process to place."""

    name: str
    needs: Needs
    brings: Needs = Needs()  # what its node needs in addition, once per node, e.g. for a relay


class _Node:
    def __init__(self, used: Needs) -> None:
        self.used = used
        self.brought = False

    def with_(self, item: Pack) -> Needs:
        return self.used + item.needs + (Needs() if self.brought else item.brings)

    def take(self, item: Pack) -> None:
        self.used = self.with_(item)
        self.brought = self.brought or item.brings != Needs()


def pack(
    items: Sequence[Pack], node: Needs, max_nodes: int, reserved: Needs, where: str
) -> tuple[dict[str, int], Needs]:
    """Returns the node number of each process, and what to request of every node.

    `reserved`: kept free on the first node. `max_nodes`: 0 = no limit. `where`: the hardware class in error messages.
    """
    for item, alone in zip(items, _alone(items, reserved)):
        if not alone.fits(node):
            raise _too_large(item, alone, node, where)
    placed, used = _first_fit(items, node, reserved)
    if max_nodes and len(used) > max_nodes:
        raise _too_many(items, node, max_nodes, len(used), placed, where)
    num_nodes = len(used)
    for field in ("gpus", "cpus"):
        total = sum(getattr(needs, field) for needs in used)
        for size in range(math.ceil(total / num_nodes), getattr(node, field)):
            smaller = replace(node, **{field: size})
            if not all(alone.fits(smaller) for alone in _alone(items, reserved)):
                continue
            tried, tried_used = _first_fit(items, smaller, reserved)
            if len(tried_used) <= num_nodes:
                node, placed, used = smaller, tried, tried_used
                break
    return placed, Needs(max(n.cpus for n in used), max(n.gpus for n in used), max(n.memory_gb for n in used))


def _alone(items: Sequence[Pack], reserved: Needs) -> list[Needs]:
    """What each process needs on an empty node. The first process must be on the first node."""
    return [item.needs + item.brings + (reserved if i == 0 else Needs()) for i, item in enumerate(items)]


def _first_fit(items: Sequence[Pack], node: Needs, reserved: Needs) -> tuple[dict[str, int], list[Needs]]:
    nodes = [_Node(reserved)]
    placed: dict[str, int] = {}
    for item in items:
        number = next((i for i, there in enumerate(nodes) if there.with_(item).fits(node)), len(nodes))
        if number == len(nodes):
            nodes.append(_Node(Needs()))
        nodes[number].take(item)
        placed[item.name] = number
    return placed, [there.used for there in nodes]


# --- errors ------------------------------------------------------------------------------------


def _too_large(item: Pack, alone: Needs, node: Needs, where: str) -> UserError:
    own = item.needs
    besides = Needs(alone.cpus - own.cpus, alone.gpus - own.gpus, alone.memory_gb - own.memory_gb)
    room = Needs(node.cpus - besides.cpus, node.gpus - besides.gpus, node.memory_gb - besides.memory_gb)
    extra = f", plus {besides} for what runs beside it" if besides != Needs() else ""
    return UserError(
        f"{item.name} needs {own}{extra}, but a node of {where} has {node}",
        f"at most {room} would fit: request less, or use a class with larger nodes",
    )


def _too_many(
    items: Sequence[Pack], node: Needs, max_nodes: int, num_nodes: int, placed: dict[str, int], where: str
) -> UserError:
    kinds = Counter(_kind(item) for item in items)
    fitting = Counter(_kind(item) for item in items if placed[item.name] < max_nodes)
    listed = ", ".join(f"{fitting[kind]} of {count} {kind}" for kind, count in kinds.items() if fitting[kind] < count)
    return UserError(
        f"the run needs {num_nodes} nodes of {where}, but a job may have {max_nodes} (each {node})",
        f"these would fit: {listed}; request fewer or smaller processes, or raise max_nodes in the site file",
    )


def _kind(item: Pack) -> str:
    return item.name.rsplit("-", 1)[0]
