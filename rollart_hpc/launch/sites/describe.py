"""`site init`: writes a site file from a live cluster. Owns the guesses, and marks them in the file.

One class per kind of node, with the plainest partition that has such nodes: open to the user, only this kind of node,
no more privileged than needed, with the longest time limit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from rollart_hpc.hardware import BANDWIDTH, COMPUTE, CPU, GPUS
from rollart_hpc.launch.sites.advice import default_lines, pool_lines
from rollart_hpc.launch.slurm.inventory import Inventory, NodeKind, Partition
from rollart_hpc.launch.slurm.unix_groups import is_open

_LOOPBACK = "lo"


class Candidate(NamedTuple):
    partition: Partition
    kind: NodeKind

    @property
    def hardware(self) -> str:
        """Nodes with the same GPUs form a class."""
        return (self.kind.gpu or "gpu") if self.kind.gpus else CPU


def describe(inventory: Inventory) -> str:
    """The text of a site file."""
    chosen = choose(inventory)
    classes = {class_name(c.hardware): _class(c) for c in chosen}
    text = [
        f"# Cluster {inventory.cluster} (Slurm {inventory.version}), written by `rollart-hpc site init`.",
        "# Lines marked GUESS could not be read from Slurm: check them, then run rollart-hpc doctor --site THIS_FILE",
        "launcher: slurm",
        "classes:",
        *(f"  {name}: {_flow(values)}" for name, values in classes.items()),
        f"serves: {_flow(serves(chosen))}  # GUESS: which class has compute, which has memory bandwidth",
        *pool_lines(classes, serves(chosen)),
        *_network(chosen),
        "run_root: ~/rollart-runs  # GUESS: must be on a file system that all nodes share",
        f"mpi: {mpi_of(inventory)}",
        f"submit_from_compute: {str(_may_submit_anywhere(chosen)).lower()}",
        *default_lines(classes, serves(chosen)),
        *_others(inventory, chosen),
    ]
    return "\n".join(text) + "\n"


def choose(inventory: Inventory) -> list[Candidate]:
    """The best partition for each kind of hardware, CPU class first."""
    candidates = [Candidate(p, kind) for p in inventory.partitions.values() for kind in p.kinds if kind.num_usable]
    best: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=_rank):
        best.setdefault(candidate.hardware, candidate)
    return sorted(best.values(), key=lambda c: (c.hardware != CPU, c.hardware))


def _rank(candidate: Candidate) -> tuple[Any, ...]:
    """Sort key: the best candidate has the smallest."""
    partition, kind = candidate
    hours = -(partition.max_minutes or math.inf)
    closed = not (partition.is_up and is_open(partition))
    return (closed, len(partition.kinds), partition.priority, hours, -kind.num_nodes, not partition.is_default)


def _class(candidate: Candidate) -> dict[str, Any]:
    partition, kind = candidate
    values: dict[str, Any] = {"partition": partition.name}
    if kind.gpus:
        known = known_gpu(kind.gpu)
        values |= {"gres": kind.gpu} if kind.gpu else {}
        values |= {"gpu": known} if known else {}
        values["gpus"] = kind.gpus
    values |= {"cpus": kind.cpus, "memory_gb": math.floor(kind.memory_gb * 10) / 10}
    if kind.threads_per_core > 1:
        values["threads_per_core"] = kind.threads_per_core
    values["max_nodes"] = min(kind.num_nodes, partition.max_nodes or kind.num_nodes)
    if partition.max_minutes:
        values["max_minutes"] = partition.max_minutes
    return values


def known_gpu(kind: str) -> str:
    """The GPU in our table that this name means: `nvidia_h800_80gb` is an h800. Empty if there is none.

    >>> known_gpu("nvidia_h800_80gb"), known_gpu("gtx1080")
    ('h800', '')
    """
    words = re.split(r"[^a-z0-9]+", kind.lower())
    return next((name for name in GPUS if name in words), "")


def serves(chosen: list[Candidate]) -> dict[str, str]:
    """Which class serves which need: the one with the most FLOPS trains and prefills, the one with the most memory
    bandwidth per FLOPS decodes."""
    if not chosen:
        return {}
    gpus = [c for c in chosen if c.kind.gpus] or chosen
    figures = {c.hardware: GPUS.get(known_gpu(c.kind.gpu)) for c in gpus}
    compute = max(gpus, key=lambda c: (f.tflops if (f := figures[c.hardware]) else 0.0, c.kind.num_nodes))
    bandwidth = max(gpus, key=lambda c: f.bandwidth_tb_s / f.tflops if (f := figures[c.hardware]) else 0.0)
    cpu = next((c for c in chosen if not c.kind.gpus), compute)
    return {need: class_name(c.hardware) for need, c in ((CPU, cpu), (COMPUTE, compute), (BANDWIDTH, bandwidth))}


def class_name(hardware: str) -> str:
    return known_gpu(hardware) or re.sub(r"[^a-z0-9._-]", "-", hardware.lower())


def mpi_of(inventory: Inventory) -> str:
    return next((kind for kind in ("pmi2", "pmix") if kind in inventory.mpi), "none")


def _network(chosen: list[Candidate]) -> Iterator[str]:
    if chosen and all(c.kind.is_on_loopback for c in chosen):
        yield f"network: {{control: {_LOOPBACK}, data: {_LOOPBACK}}}  # all nodes are on one machine"
        return
    yield "network:  # GUESS: the address of the host name; `rollart-hpc doctor` shows the addresses of the nodes"
    yield "  # control: eth0"
    yield "  # data: ib0"


def _may_submit_anywhere(chosen: list[Candidate]) -> bool:
    return all(c.partition.submit_hosts in ("ALL", "(null)") for c in chosen)


def _others(inventory: Inventory, chosen: list[Candidate]) -> Iterator[str]:
    used = {c.partition.name for c in chosen}
    others = [p for p in inventory.partitions.values() if p.name not in used]
    if others:
        yield "# Partitions not used: " + ", ".join(f"{p.name} ({p.num_nodes} nodes)" for p in others)


def _flow(values: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=1000)
    return text.strip()
