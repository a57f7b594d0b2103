"""How the members of an epoch agree on a collective. Owns the keys of the epoch's store.

The source decides, because it sees who joined: MPI if source and targets are exactly the relays of one healthy world,
else gloo for CPU memory and NCCL for GPU memory. After a world is lost nobody else has to decide anything: the next
epoch of its relays finds no common world and uses gloo.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from rollart_hpc.weights.meeting_store import MeetingStore
from rollart_hpc.weights.mpi import MpiProcessGroup, MpiWorld
from rollart_hpc.weights.process_groups import CPU, ProcessGroup, RankSetup, TorchProcessGroup, TransferError, explained

_BACKEND, _PLACE, _ROOT, _ABORT = "backend", "place", "root", "abort"
MPI = "mpi"

# Stores that tell others of an abort: they read it later. At most one, because who gives up leaves the MPI world.
_given_up: list[MeetingStore] = []


def form(store: MeetingStore, setup: RankSetup, world: MpiWorld | None = None) -> ProcessGroup:
    """The epoch's group, which closes the store in the end. Waits for all ranks, until the deadline at most."""
    try:
        return _form(store, setup, world)
    except BaseException:
        store.close()
        raise


def _form(store: MeetingStore, setup: RankSetup, world: MpiWorld | None) -> ProcessGroup:
    with explained("could not form the group of a weight transfer"):
        backend = _decide(store, setup, world) if setup.rank == 0 else _hear(store, setup, world)
        if backend == MPI:
            assert world is not None, "the source chose MPI, but this process has no MPI world"
            return _over_mpi(store, setup, world)
    if backend == "cpu":
        return TorchProcessGroup(store, replace(setup, device=CPU))
    if setup.device.type != backend:
        raise TransferError(f"the source sends from {backend} memory, but this process uses {setup.device.type} memory")
    return TorchProcessGroup(store, setup)


def collective_of(group: ProcessGroup) -> str:
    """The collective's name, for status and reports."""
    if isinstance(group, MpiProcessGroup):
        return MPI
    return "gloo" if group.device.type == "cpu" else "nccl"


def _decide(store: MeetingStore, setup: RankSetup, world: MpiWorld | None) -> str:
    backend = setup.device.type
    if world is not None and setup.device == CPU and world.place:
        places = [world.place, *(store.get(f"{_PLACE}/{rank}").decode() for rank in range(1, setup.size))]
        if world.contains_all(places) and world.enter():
            store.set(_ROOT, str(world.rank))
            backend = MPI
    store.set(_BACKEND, backend)
    return backend


def _hear(store: MeetingStore, setup: RankSetup, world: MpiWorld | None) -> str:
    """A target whose world is in use by another epoch offers no place in this one."""
    is_free = world is not None and bool(world.place) and world.enter()
    store.set(f"{_PLACE}/{setup.rank}", world.place if world is not None and is_free else "")
    backend = ""
    try:
        backend = store.get(_BACKEND).decode()
    finally:
        if world is not None and is_free and backend != MPI:
            world.exit()
    return backend


def _over_mpi(store: MeetingStore, setup: RankSetup, world: MpiWorld) -> MpiProcessGroup:
    """The store stays open beside MPI: a rank that gives up announces it there, because MPI has no way to."""

    def gave_up() -> bool:
        with suppress(RuntimeError):  # the source is gone: the launcher or the deadline ends this epoch
            return bool(store.check([_ABORT]))
        return False

    def give_up() -> None:
        _given_up.append(store)
        with suppress(RuntimeError):
            store.set(_ABORT, "1")

    root = int(store.get(_ROOT).decode())
    return MpiProcessGroup(world, root, setup.deadline_s, gave_up, give_up, store.close)
