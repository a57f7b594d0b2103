"""Reads the partitions of a live cluster and the kinds of nodes in them. Judges nothing.

read_inventory(Slurm()).partitions["h800"].kinds
(NodeKind(cpus=16, memory_gb=62.5, gpu="h800", gpus=8, num_nodes=2, num_usable=2, addresses=("127.0.0.1",)),)
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from rollart_hpc.launch.slurm.budget import seconds
from rollart_hpc.launch.slurm.commands import Slurm

Record = dict[str, str]
_UNUSABLE = frozenset({
    "DOWN", "DRAIN", "DRAINED", "DRAINING", "ERROR", "FAIL", "FAILING", "FUTURE", "INVALID_REG", "MAINT", "UNKNOWN",
})  # fmt: skip
_SILENT = "NOT_RESPONDING"  # Slurm also writes it as a star after a state
_MARKS = "*~#!%$@^-"  # Slurm's suffixes of a state
_MB_OF_GB = 1024


@dataclass(frozen=True)
class NodeKind:
    """Nodes that are the same for a plan. Nodes with GPUs of several types are a kind for each type."""

    cpus: int
    memory_gb: float  # available to jobs
    gpu: str  # Slurm's name for it; empty if it has none
    gpus: int
    num_nodes: int
    num_usable: int  # neither down nor drained
    addresses: tuple[str, ...]
    threads_per_core: int = 1  # threads that Slurm counts as CPUs
    is_counted: bool = True  # False: these nodes are already counted with another type of their GPUs

    @property
    def is_on_loopback(self) -> bool:
        return all(_is_loopback(address) for address in self.addresses)


@dataclass(frozen=True)
class Partition:
    name: str
    is_up: bool
    is_default: bool
    priority: int
    max_minutes: int  # 0: no limit
    max_nodes: int  # 0: no limit
    allow_groups: str  # ALL, or names
    allow_accounts: str
    allow_qos: str
    submit_hosts: str  # ALL, or the hosts that may submit jobs to it
    kinds: tuple[NodeKind, ...]

    @property
    def num_nodes(self) -> int:
        return sum(kind.num_nodes for kind in self.kinds if kind.is_counted)

    @property
    def num_usable(self) -> int:
        return sum(kind.num_usable for kind in self.kinds if kind.is_counted)


@dataclass(frozen=True)
class Inventory:
    cluster: str
    version: str
    settings: dict[str, str]  # of slurm.conf
    partitions: dict[str, Partition]
    mpi: tuple[str, ...]  # MPI types of srun


def read_inventory(slurm: Slurm) -> Inventory:
    settings = slurm.settings()
    nodes: dict[str, list[Record]] = defaultdict(list)
    for node in slurm.records("show", "node"):
        for partition in node.get("Partitions", "").split(","):
            nodes[partition].append(node)
    partitions = [_partition(row, nodes[row["PartitionName"]]) for row in slurm.records("show", "partition")]
    return Inventory(
        cluster=settings.get("ClusterName", "cluster"),
        version=settings.get("SLURM_VERSION", ""),
        settings=settings,
        partitions={partition.name: partition for partition in partitions},
        mpi=_mpi(slurm),
    )


def _partition(row: Record, nodes: list[Record]) -> Partition:
    return Partition(
        name=row["PartitionName"],
        is_up=row.get("State") == "UP",
        is_default=row.get("Default") == "YES",
        priority=_number(row.get("PriorityTier", "1")),
        max_minutes=minutes(row.get("MaxTime", "")),
        max_nodes=_number(row.get("MaxNodes", "")),
        allow_groups=row.get("AllowGroups", "ALL"),
        allow_accounts=row.get("AllowAccounts", "ALL"),
        allow_qos=row.get("AllowQos", "ALL"),
        submit_hosts=row.get("AllocNodes", "ALL"),
        kinds=_kinds(nodes),
    )


def _kinds(nodes: Iterable[Record]) -> tuple[NodeKind, ...]:
    alike: dict[tuple[str, int, int, float, int, bool], list[Record]] = defaultdict(list)
    for node in nodes:
        cpus = _number(node.get("CPUEfctv") or node.get("CPUTot", "1"))
        memory_gb = (_number(node.get("RealMemory", "")) - _number(node.get("MemSpecLimit", ""))) / _MB_OF_GB
        for i, (gpu, gpus) in enumerate(gpus_of(node.get("Gres", "")).items() or [("", 0)]):
            alike[gpu, gpus, cpus, memory_gb, threads_of(node), i == 0].append(node)
    return tuple(
        NodeKind(
            cpus=cpus,
            memory_gb=memory_gb,
            gpu=gpu,
            gpus=gpus,
            num_nodes=len(found),
            num_usable=sum(is_usable(node.get("State", "")) for node in found),
            addresses=tuple(sorted({node.get("NodeAddr", "") for node in found})),
            threads_per_core=threads,
            is_counted=is_counted,
        )
        for (gpu, gpus, cpus, memory_gb, threads, is_counted), found in alike.items()
    )


def threads_of(node: Record) -> int:
    """CPUs per core. A cluster may count a core as one CPU even if it has several threads.

    >>> threads_of({"CPUTot": "16", "Sockets": "2", "CoresPerSocket": "4", "ThreadsPerCore": "2"})
    2
    >>> threads_of({"CPUTot": "8", "Sockets": "2", "CoresPerSocket": "4", "ThreadsPerCore": "2"})
    1
    """
    cores = _number(node.get("Sockets", "")) * _number(node.get("CoresPerSocket", ""))
    return max(1, _number(node.get("CPUTot", "")) // cores) if cores else 1


def gpus_of(gres: str) -> dict[str, int]:
    """The GPUs of a node by their type, which is empty if it has no name. A type may begin with a digit or be one, so
    an item is read from the right. Shares of GPUs (`shard`) are not GPUs.

    >>> gpus_of("gpu:h800:8(S:0-1),nvme:1"), gpus_of("gpu:4"), gpus_of("(null)")
    ({'h800': 8}, {'': 4}, {})
    >>> gpus_of("gpu:4090:8"), gpus_of("gpu:a100:4,gpu:a100_1g.5gb:14,shard:a100:16")
    ({'4090': 8}, {'a100': 4, 'a100_1g.5gb': 14})
    """
    found: Counter[str] = Counter()
    for item in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = item.strip().split(":")
        if name == "gpu":
            count = int(rest.pop()) if rest and rest[-1].isdigit() else 1
            found[":".join(rest)] += count
    return {kind: count for kind, count in found.items() if count}


def minutes(limit: str) -> int:
    """Parses a time limit of Slurm; 0 if there is none.

    >>> minutes("1-12:00:00"), minutes("04:30:00"), minutes("UNLIMITED")
    (2160, 270, 0)
    """
    found_s = seconds(limit)
    return 0 if math.isinf(found_s) else int(found_s // 60)


def is_usable(state: str) -> bool:
    """`IDLE+DRAIN`, `DOWN*` and similar states are not usable. A powered-down node is: Slurm starts it for a job.

    >>> is_usable("IDLE+CLOUD+POWERED_DOWN"), is_usable("DOWN+CLOUD+POWERED_DOWN"), is_usable("IDLE+NOT_RESPONDING")
    (True, False, False)
    """
    parts = state.upper().split("+")
    words = {part.rstrip(_MARKS) for part in parts}
    is_silent = _SILENT in words or any("*" in part for part in parts)
    sleeps = any(word.startswith("POWER") for word in words)
    return not words & _UNUSABLE and (sleeps or not is_silent)


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _mpi(slurm: Slurm) -> tuple[str, ...]:
    answer = slurm.ask("srun", "--mpi=list")
    words = re.findall(r"\b(?:none|pmi2|pmix)\b", f"{answer.stdout}\n{answer.stderr}")
    return tuple(sorted(set(words)))


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
