"""The jobs that a user has in the queue, as squeue shows them, and what they take of a limit. Judges nothing.

A component of a heterogeneous job is a job, as in Slurm's own counting. A job that asked for GPUs in another way than
per node (`--gpus`) shows none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rollart_hpc.launch.slurm.commands import Slurm
from rollart_hpc.launch.slurm.inventory import gpus_of
from rollart_hpc.launch.slurm.queue import PENDING

_FIELDS = {"account": "%a", "qos": "%q", "state": "%T", "nodes": "%D", "cpus": "%C", "gres": "%b"}


@dataclass(frozen=True)
class OwnJob:
    account: str
    qos: str
    is_running: bool  # it holds resources
    nodes: int
    cpus: int
    gpus: dict[str, int]  # by type, of all its nodes

    def amount(self, tres: str) -> float:
        """How much it takes of a trackable resource, by Slurm's name; 0 if squeue does not show it."""
        if tres == "gres/gpu":
            return sum(self.gpus.values())
        name, _, kind = tres.partition(":")
        if name == "gres/gpu":
            return sum(count for own, count in self.gpus.items() if own.lower() == kind.lower())
        return {"cpu": self.cpus, "node": self.nodes}.get(tres, 0)


def read_own_jobs(slurm: Slurm, user: str) -> list[OwnJob]:
    rows = slurm.table("squeue", _FIELDS, "--array", f"--user={user}")
    return [_job(row) for row in rows]


def _job(row: dict[str, str]) -> OwnJob:
    nodes = int(row["nodes"]) if row["nodes"].isdigit() else 1
    per_node = gpus_of(row["gres"].removeprefix("gres:").removeprefix("gres/"))
    return OwnJob(
        account=row["account"],
        qos=row["qos"],
        is_running=row["state"] != PENDING,
        nodes=nodes,
        cpus=int(row["cpus"]) if row["cpus"].isdigit() else 0,
        gpus={kind: nodes * count for kind, count in per_node.items()},
    )


def running(jobs: Iterable[OwnJob]) -> list[OwnJob]:
    return [job for job in jobs if job.is_running]
