"""Which GPUs of its node each process sees. Owns the numbering; knows no Slurm and no CUDA.

Indices count within the run's share of a node: 0 up to the GPUs requested of it. The ranks of the trainer come first,
and each sees the GPUs of all ranks of its node, because NCCL uses NVLink only between GPUs that both processes see;
a rank computes on number `local_rank` of them. Every engine has GPUs of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from rollart_hpc.launch.planned import Proc


def assign_devices(procs: Sequence[Proc]) -> tuple[Proc, ...]:
    """The same processes, in the same order, with their GPUs and their numbers within the node."""
    by_node = groupby(sorted(procs, key=lambda proc: proc.node), key=lambda proc: proc.node)
    assigned = {proc.name: proc for _, there in by_node for proc in _on_node(list(there))}
    return tuple(assigned[proc.name] for proc in procs)


def _on_node(procs: Sequence[Proc]) -> Iterable[Proc]:
    ranks = [proc for proc in procs if proc.role == "trainer"]
    taken = sum(rank.needs.gpus for rank in ranks)
    shared = tuple(range(taken))
    for number, rank in enumerate(sorted(ranks, key=lambda proc: proc.rank)):
        yield replace(rank, gpus=shared, local_rank=number)
    for proc in procs:
        if proc.role != "trainer":
            yield replace(proc, gpus=tuple(range(taken, taken + proc.needs.gpus)))
            taken += proc.needs.gpus
