"""The allocation of a run: the job ids and hosts of its components. Owns the mapping from nodes of the plan to hosts.

In a heterogeneous job only the variables that end in _HET_GROUP_n are right in every process. The ones without that
suffix may describe any component.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rollart_hpc.errors import SiteError
from rollart_hpc.launch.plan import Plan
from rollart_hpc.launch.slurm.commands import Slurm

RESTARTS = "SLURM_RESTART_COUNT"


@dataclass(frozen=True)
class Allocation:
    leader: int  # the job's id, and that of its first component
    job_ids: tuple[int, ...]  # by component
    hosts: dict[str, str]  # node of the plan -> host
    restart: int  # how many times Slurm has restarted the job
    is_folded: bool = False  # the job was not made for this plan: its processes share the nodes

    @property
    def is_heterogeneous(self) -> bool:
        return len(set(self.job_ids)) > 1


def fold(plan: Plan, slurm: Slurm, variables: Mapping[str, str]) -> Allocation:
    """Map the nodes of the plan round-robin to the nodes of the job that contains this process."""
    leader = int(variables["SLURM_JOB_ID"])
    given = slurm.run("scontrol", "show", "hostnames", variables["SLURM_JOB_NODELIST"]).split()
    nodes = [node for component in plan.home for node in component.nodes]
    hosts = {node: given[i % len(given)] for i, node in enumerate(nodes)}
    return Allocation(leader, (leader,) * len(plan.home), hosts, 0, is_folded=True)


def fits(plan: Plan, variables: Mapping[str, str]) -> bool:
    """Does the job that contains this process have the components and nodes of the plan?"""
    num_given = int(variables.get("SLURM_HET_SIZE", "1"))
    suffixes = [f"_HET_GROUP_{i}" if num_given > 1 else "" for i in range(num_given)]
    nodes = [int(variables.get(f"SLURM_JOB_NUM_NODES{suffix}", "0")) for suffix in suffixes]
    return [len(component.nodes) for component in plan.home] == nodes


def read_allocation(plan: Plan, slurm: Slurm, variables: Mapping[str, str]) -> Allocation:
    """The job that contains this process. It must have the components and nodes of the plan."""
    if "SLURM_JOB_ID" not in variables:
        raise SiteError("this is not a Slurm job: SLURM_JOB_ID is not set", "use rollart-hpc submit or debug")
    num_given = int(variables.get("SLURM_HET_SIZE", "1"))
    if num_given != len(plan.home):
        raise SiteError(f"the job has {num_given} components, the plan {len(plan.home)}", "submit the run again")
    hosts: dict[str, str] = {}
    job_ids = []
    for component in plan.home:
        suffix = f"_HET_GROUP_{component.index}" if num_given > 1 else ""
        job_ids.append(int(variables[f"SLURM_JOB_ID{suffix}"]))
        given = slurm.run("scontrol", "show", "hostnames", variables[f"SLURM_JOB_NODELIST{suffix}"]).split()
        if len(given) < len(component.nodes):
            raise SiteError(
                f"component {component.index} ({component.partition}) has {len(given)} nodes, "
                f"the plan needs {len(component.nodes)}",
                "submit the run again",
            )
        hosts |= dict(zip(component.nodes, given, strict=False))
    return Allocation(job_ids[0], tuple(job_ids), hosts, int(variables.get(RESTARTS, "0")))
