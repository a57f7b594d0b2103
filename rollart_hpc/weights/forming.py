"""How the members of an epoch agree on a collective. Owns the keys of the epoch's store.

The source decides, for it sees who came: MPI if it and all targets are all the relays of one healthy world, else gloo
for memory of the CPU and NCCL for memory of a GPU. So a lost world needs no decision of anyone else: the next epoch
of its relays finds no common world and goes over gloo.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from rollart_hpc.weights.mpi import MpiProcessGroup, MpiWorld
from rollart_hpc.weights.process_groups import CPU, ProcessGroup, RankSetup, TorchProcessGroup, TransferError, explained

_BACKEND, _PLACE, _ROOT, _ABORT = "backend", "place", "root", "abort"
MPI = "mpi"


def form(store: TCPStore, setup: RankSetup, world: MpiWorld | None = None) -> ProcessGroup:
    """The epoch's group. Waits for all ranks, at most the deadline."""
    with explained("forming the group of a weight transfer"):
        backend = _decide(store, setup, world) if setup.rank == 0 else _hear(store, setup, world)
        if backend == MPI:
            assert world is not None, "a process without a world is in none that the source knows"
            return _over_mpi(store, setup, world)
    if backend == "cpu":
        return TorchProcessGroup(store, replace(setup, device=CPU))
    if setup.device.type != backend:
        raise TransferError(f"the source sends from {backend} memory, this process has {setup.device.type} memory only")
    return TorchProcessGroup(store, setup)


def collective_of(group: ProcessGroup) -> str:
    """Its name, for status and reports."""
    if isinstance(group, MpiProcessGroup):
        return MPI
    return "gloo" if group.device.type == "cpu" else "nccl"


def _decide(store: TCPStore, setup: RankSetup, world: MpiWorld | None) -> str:
    backend = setup.device.type
    if world is not None and setup.device == CPU and world.place:
        places = [world.place, *(store.get(f"{_PLACE}/{rank}").decode() for rank in range(1, setup.size))]
        if world.contains_all(places) and world.enter():
            store.set(_ROOT, str(world.rank))
            backend = MPI
    store.set(_BACKEND, backend)
    return backend


def _hear(store: TCPStore, setup: RankSetup, world: MpiWorld | None) -> str:
    """A target that uses its world for another epoch right now has no place in this one."""
    is_free = world is not None and bool(world.place) and world.enter()
    store.set(f"{_PLACE}/{setup.rank}", world.place if world is not None and is_free else "")
    backend = ""
    try:
        backend = store.get(_BACKEND).decode()
    finally:
        if world is not None and is_free and backend != MPI:
            world.exit()
    return backend


def _over_mpi(store: TCPStore, setup: RankSetup, world: MpiWorld) -> MpiProcessGroup:
    """The store stays open beside MPI: a rank that gives up says so there, for MPI has no way to tell."""

    def gave_up() -> bool:
        with suppress(RuntimeError):  # the source is gone: the launcher ends this process too, or the deadline does
            return bool(store.check([_ABORT]))
        return False

    def give_up() -> None:
        with suppress(RuntimeError):
            store.set(_ABORT, "1")

    root = int(store.get(_ROOT).decode())
    return MpiProcessGroup(world, root, setup.deadline_s, gave_up, give_up)
