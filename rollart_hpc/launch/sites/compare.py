"""`site check`: compares a site file with the live cluster. Owns what counts as a difference, and the fixes."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from rollart_hpc.config.site import HardwareClass, SiteConfig
from rollart_hpc.launch.finding import Finding, fail, good, note, warn
from rollart_hpc.launch.sites.gpu_names import is_slice, known_gpu
from rollart_hpc.launch.slurm.inventory import Inventory, NodeKind, Partition
from rollart_hpc.launch.slurm.unix_groups import is_open


def compare(site: SiteConfig, inventory: Inventory) -> list[Finding]:
    found: list[Finding] = []
    for name, own in site.classes.items():
        differences = list(_class(name, own, inventory))
        found += differences or [good(f"class {name}", f"matches partition {own.partition}")]
    found += _mpi(site, inventory)
    return found


def _class(name: str, own: HardwareClass, inventory: Inventory) -> Iterator[Finding]:
    check = f"class {name}"
    partition = inventory.partitions.get(own.partition)
    if partition is None:
        near = difflib.get_close_matches(own.partition, inventory.partitions, n=1)
        names = f"{near[0]}? " if near else ""
        yield fail(
            check,
            f"there is no partition {own.partition}",
            f"classes.{name}.partition: {names}partitions: {', '.join(inventory.partitions)}",
        )
        return
    yield from _partition(check, partition)
    yield from _limits(name, own, partition)
    kinds = [kind for kind in partition.kinds if _fits(own, kind)]
    if not kinds:
        there = ", ".join(sorted({_gres(kind) for kind in partition.kinds})) or "no nodes"
        yield fail(
            check,
            f"no node of partition {partition.name} has {_wanted(own)}; they have: {there}",
            f"correct classes.{name}.gres and classes.{name}.gpus",
        )
        return
    yield from _sizes(name, own, kinds)
    yield from _figures(name, own, kinds)


def _partition(check: str, partition: Partition) -> Iterator[Finding]:
    if not partition.is_up:
        yield fail(check, f"partition {partition.name} is not up: its jobs wait", "wait, or use another partition")
    if not is_open(partition):
        yield fail(
            check,
            f"partition {partition.name} is open only to group {partition.allow_groups}",
            "ask for access, or use another partition",
        )
    unusable = partition.num_nodes - partition.num_usable
    if partition.num_nodes and not partition.num_usable:
        yield fail(
            check,
            f"all {unusable} nodes of {partition.name} are down or drained",
            f"see why: sinfo -R -p {partition.name}",
        )
    elif unusable:
        yield warn(
            check,
            f"{unusable} of {partition.num_nodes} nodes of {partition.name} are down or drained",
            f"see why: sinfo -R -p {partition.name}",
        )


def _limits(name: str, own: HardwareClass, partition: Partition) -> Iterator[Finding]:
    check = f"class {name}"
    limit = partition.max_minutes
    if limit and (own.max_minutes > limit or not own.max_minutes):
        said = own.max_minutes or "no limit"
        yield fail(
            check,
            f"max_minutes: {said}; partition {partition.name} allows {limit}",
            f"classes.{name}.max_minutes: {limit}",
        )
    nodes = min(partition.num_nodes, partition.max_nodes or partition.num_nodes)
    if own.max_nodes > nodes:
        yield fail(
            check,
            f"max_nodes: {own.max_nodes}; a job in partition {partition.name} can have {nodes}",
            f"classes.{name}.max_nodes: {nodes}",
        )


def _sizes(name: str, own: HardwareClass, kinds: list[NodeKind]) -> Iterator[Finding]:
    """A class that claims more than its nodes have is an error; less is the site's choice."""
    check = f"class {name}"
    cpus, memory_gb = max(kind.cpus for kind in kinds), max(kind.memory_gb for kind in kinds)
    gpus = max(kind.gpus for kind in kinds)
    if own.cpus > cpus:
        yield fail(check, f"cpus: {own.cpus}; its nodes have {cpus}", f"classes.{name}.cpus: {cpus}")
    if own.memory_gb > memory_gb:
        fix = f"classes.{name}.memory_gb: {memory_gb:.1f}"
        yield fail(check, f"memory_gb: {own.memory_gb:g}; its nodes have {memory_gb:.1f}", fix)
    threads = max(kind.threads_per_core for kind in kinds)
    if own.threads_per_core < threads:
        said = f"threads_per_core: {own.threads_per_core}; a core of its nodes has {threads} CPUs"
        yield fail(check, f"{said}, so processes would share cores", f"classes.{name}.threads_per_core: {threads}")
    less = [
        f"{key}: {said:g} of {has:g}"
        for key, said, has in (("gpus", own.gpus, gpus), ("cpus", own.cpus, cpus))
        if said < has
    ]
    if less:
        yield note(check, f"uses less than its nodes have ({', '.join(less)})")


def _figures(name: str, own: HardwareClass, kinds: list[NodeKind]) -> Iterator[Finding]:
    types = sorted({kind.gpu for kind in kinds if kind.gpus} - {""})
    if own.gpus and not own.gres and len(types) > 1:
        yield warn(
            f"class {name}",
            f"gres: empty, and its nodes have GPUs of several types: {', '.join(types)}",
            f"classes.{name}.gres: {types[0]}",
        )
    if own.gpu and any(is_slice(kind) for kind in types):
        yield warn(
            f"class {name}",
            f"gpu: {own.gpu}, but Slurm offers slices of GPUs ({', '.join(types)}), which have other figures",
            f"leave classes.{name}.gpu empty; set tflops and bandwidth_tb_s to those of a slice",
        )
    known = {known_gpu(kind) for kind in types} - {""}
    if own.gpu and known and own.gpu not in known:
        yield warn(
            f"class {name}",
            f"gpu: {own.gpu}, but Slurm calls its GPUs {', '.join(sorted(known))}",
            f"classes.{name}.gpu: {min(known)}",
        )


def _mpi(site: SiteConfig, inventory: Inventory) -> Iterator[Finding]:
    if site.mpi != "none" and site.mpi not in inventory.mpi:
        listed = ", ".join(inventory.mpi) or "none"
        yield fail("mpi", f"mpi: {site.mpi}; srun has: {listed}", "set mpi in the site file to one of these")
    else:
        yield good("mpi", f"srun has {site.mpi}")


def _fits(own: HardwareClass, kind: NodeKind) -> bool:
    return kind.gpus >= own.gpus and (not own.gres or own.gres == kind.gpu)


def _wanted(own: HardwareClass) -> str:
    return f"{own.gpus} GPUs of type {own.gres}" if own.gres else f"{own.gpus} GPUs"


def _gres(kind: NodeKind) -> str:
    return f"{kind.gpus} GPUs of type {kind.gpu or 'unnamed'}" if kind.gpus else "no GPUs"
