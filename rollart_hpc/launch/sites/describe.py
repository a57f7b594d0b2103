"""`site init`: writes a site file from a live cluster. Owns the guesses, and marks them in the file.

One class per kind of node, with the plainest partition that has such nodes: open to the user, only this kind of node,
no more privileged than needed, with the longest time limit.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from rollart_hpc.hardware import BANDWIDTH, COMPUTE, CPU, GPUS
from rollart_hpc.launch.sites.gpu_names import is_slice, known_gpu
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
    classes = {name: _class(c) for name, c in named(chosen).items()}
    text = [
        f"# Cluster {inventory.cluster} (Slurm {inventory.version}), written by `rollart-hpc site init`.",
        "# Lines marked GUESS could not be read from Slurm: check them, then run rollart-hpc doctor --site THIS_FILE",
        "launcher: slurm",
        "classes:",
        *(f"  {name}: {_flow(values)}" for name, values in classes.items()),
        f"serves: {_flow(serves(chosen))}  # GUESS: which class has compute, which has memory bandwidth",
        *_network(chosen),
        "run_root: ~/rollart-runs  # GUESS: must be on a file system that all nodes share",
        f"mpi: {mpi_of(inventory)}",
        f"submit_from_compute: {str(_may_submit_anywhere(chosen)).lower()}",
        *_others(inventory, chosen),
    ]
    return "\n".join(text) + "\n"


def choose(inventory: Inventory) -> list[Candidate]:
    """The best partition for each kind of hardware, CPU class first."""
    candidates = [Candidate(p, kind) for p in inventory.partitions.values() for kind in p.kinds if kind.num_usable]
    best: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=_rank):
        best.setdefault(candidate.hardware, candidate)
    return sorted(best.values(), key=lambda c: (c.hardware != CPU, is_slice(c.hardware), c.hardware))


def named(chosen: list[Candidate]) -> dict[str, Candidate]:
    """By the names of their classes: short ones, unless two kinds of hardware would share one."""
    short = Counter(class_name(c.hardware) for c in chosen)
    found: dict[str, Candidate] = {}
    for candidate in chosen:
        name = class_name(candidate.hardware)
        name = name if short[name] == 1 else plain_name(candidate.hardware)
        same = (f"{name}-{i}" for i in itertools.count(2))
        found[name if name not in found else next(n for n in same if n not in found)] = candidate
    return found


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


def serves(chosen: list[Candidate]) -> dict[str, str]:
    """Which class serves which need: the one with the most FLOPS trains and prefills, the one with the most memory
    bandwidth per FLOPS decodes."""
    if not chosen:
        return {}
    gpus = [c for c in chosen if c.kind.gpus and not is_slice(c.kind.gpu)]
    gpus = gpus or [c for c in chosen if c.kind.gpus] or chosen
    names = {c.hardware: name for name, c in named(chosen).items()}
    figures = {c.hardware: GPUS.get(known_gpu(c.kind.gpu)) for c in gpus}
    compute = max(gpus, key=lambda c: (f.tflops if (f := figures[c.hardware]) else 0.0, c.kind.num_nodes))
    bandwidth = max(gpus, key=lambda c: f.bandwidth_tb_s / f.tflops if (f := figures[c.hardware]) else 0.0)
    cpu = next((c for c in chosen if not c.kind.gpus), compute)
    return {need: names[c.hardware] for need, c in ((CPU, cpu), (COMPUTE, compute), (BANDWIDTH, bandwidth))}


def class_name(hardware: str) -> str:
    return known_gpu(hardware) or plain_name(hardware)


def plain_name(hardware: str) -> str:
    """A name that YAML does not take for a number.

    >>> plain_name("4090"), plain_name("NVIDIA A30")
    ('gpu-4090', 'nvidia-a30')
    """
    name = re.sub(r"[^a-z0-9._-]", "-", hardware.lower())
    return name if name[:1].isalpha() else f"gpu-{name}"


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
