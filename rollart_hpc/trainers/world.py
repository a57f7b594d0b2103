"""The ranks of one trainer. Owns torch.distributed's default group and how ranks find each other; knows no model.

Rank 0 opens a meeting on a free port and writes its address and its secret to a private file of the run; the others
wait for that file. A single rank opens no port. Without the secret nobody meets the ranks, and every gloo group, also
those that libraries make, begins with a proof that both ends of each connection know it. We send payloads as raw bytes,
never pickled; torch's and Megatron's checkpoint code pickles its plans, between proven ranks only. A rank that dies
closes its sockets, which fails the group on the other ranks. A rank that hangs is found by its missing heartbeats. So
our own operations, over gloo, have no timeout: they may wait as long as the controller needs to make a batch. Where
there are GPUs, the model's operations have one, because nobody waits for a batch in them: a collective that hangs is
ended by NCCL's watchdog, which names it in the rank's log with the stack that started it (torch's flight recorder).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]
    HashStore,
    ProcessGroupGloo,
    Store,
    distributed_c10d,
)

from rollart_hpc.errors import SiteError
from rollart_hpc.files import read_json, write_json
from rollart_hpc.types import Frame
from rollart_hpc.weights.meeting import Meeting, new_secret
from rollart_hpc.weights.meeting_store import MeetingStore
from rollart_hpc.weights.proofs import prove
from rollart_hpc.wire.interfaces import interface_with
from rollart_hpc.wire.library_ports import hold_libraries
from rollart_hpc.wire.ports import listen_tcp

_FOREVER = timedelta(days=30)
_RETRY_S = 0.05
_HANGS = timedelta(minutes=20)  # a collective of a model on GPUs; the longest gap is one rank that publishes or saves
_PROOF = timedelta(minutes=10)  # ranks reach a new group at different times, after the model is loaded at the latest


@dataclass(frozen=True)
class World:
    rank: int
    size: int
    device: torch.device
    store: Store | None = field(default=None, repr=False, compare=False)  # torch's groups use it as long as they live
    patient: dist.ProcessGroup | None = field(default=None, repr=False, compare=False)  # None: torch's default group

    def sum(self, values: list[float]) -> list[float]:
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, values: list[float]) -> list[float]:
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: list[float], op: dist.ReduceOp.RedOpType) -> list[float]:
        if self.size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        with rank_errors():
            dist.all_reduce(tensor, op, group=self.patient)
        return tensor.tolist()

    def all_good(self, problem: SiteError | None) -> None:
        """Raise on every rank if any rank has a problem; the affected ranks raise their own."""
        num_bad = int(self.sum([float(problem is not None)])[0])
        if problem is not None:
            raise problem
        if num_bad:
            raise SiteError(f"{num_bad} of {self.size} trainer ranks failed", "see the logs of the other trainer ranks")

    def broadcast(self, frames: Sequence[Frame] | None = None) -> list[Frame]:
        """Rank 0 passes frames; every rank returns them."""
        if self.size == 1:
            assert frames is not None
            return list(frames)
        payload = _join(frames) if frames is not None else None
        length = torch.tensor([0 if payload is None else len(payload)])
        with rank_errors():
            dist.broadcast(length, src=0, group=self.patient)
            data = torch.empty(int(length), dtype=torch.uint8) if payload is None else payload
            dist.broadcast(data, src=0, group=self.patient)
        return _split(data)

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        if isinstance(self.store, MeetingStore):
            self.store.close()


@contextmanager
def rank_errors() -> Iterator[None]:
    """Turns torch's RuntimeErrors about a lost peer, which name the transport, into SiteErrors."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        what = f"another trainer rank died: {str(error).splitlines()[0][:200]}"
        raise SiteError(what, "see the logs of the other trainer ranks") from None


def open_world(
    rank: int,
    size: int,
    device: str,
    rendezvous: Path | None = None,
    host: str = "127.0.0.1",
    *,
    local_rank: int = 0,
) -> World:
    """Meet the other ranks through the file `rendezvous` (unused if there is only one rank)."""
    place = pick_device(device, local_rank)
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    if place.type == "cuda":
        torch.cuda.set_device(place)
    store: HashStore | MeetingStore
    if size == 1:
        store = HashStore()
    else:
        assert rendezvous is not None
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, interface_with(host))
        store = _open_store(rendezvous, host) if rank == 0 else _join_store(rendezvous)
        hold_libraries()
        # It would read the store every second from a thread of its own; our heartbeats find ranks that hang.
        os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
        _prove_gloo_groups(store.secret)
    with rank_errors():
        is_gpu = place.type == "cuda"
        timeout = _HANGS if is_gpu else _FOREVER
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=timeout)
        patient = dist.new_group(backend="gloo", timeout=_FOREVER) if is_gpu else None
    return World(rank, size, place, store, patient)


def _prove_gloo_groups(secret: str) -> None:
    """From now on every gloo group of this process proves its connections before torch or a library gets it.

    torch has no hook for that: libraries ask for "gloo" by name. So the class that torch makes groups of is replaced.
    """

    class ProvenGloo(ProcessGroupGloo):
        def __init__(self, store: Store, rank: int, size: int, timeout: timedelta) -> None:
            super().__init__(store, rank, size, timeout)
            prove(self, store, secret, min(timeout, _PROOF))

    distributed_c10d.ProcessGroupGloo = ProvenGloo  # type: ignore[misc]


def set_up_cpu(num_threads: int) -> None:
    """All ranks of a node share its cores. Denormals (decayed moments below 1e-38) would be a hundred times slower."""
    torch.set_num_threads(num_threads)
    torch.set_flush_denormal(True)


def pick_device(name: str, local_rank: int) -> torch.device:
    """The ranks of a node see all of its trainer GPUs, so that NCCL can use the links between them."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise SiteError("trainer.device is cuda, but this node has no usable GPU", "set trainer.device=auto")
    return torch.device("cuda", local_rank % torch.cuda.device_count())


def _open_store(rendezvous: Path, host: str) -> MeetingStore:
    listener, secret = listen_tcp(host), new_secret()
    port = listener.getsockname()[1]
    store = MeetingStore(host, port, secret, _FOREVER, Meeting(listener, secret))
    write_json(rendezvous, {"host": host, "port": port, "secret": secret})  # only the user can read it, like our keys
    return store


def _join_store(rendezvous: Path, timeout_s: float = 300.0) -> MeetingStore:
    """The file may be missing, or from a rank 0 that is gone: read it again until rank 0 answers."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        address = read_json(rendezvous)
        if address is not None:
            store = MeetingStore(address["host"], address["port"], address["secret"], timedelta(seconds=5))
            try:
                store.num_keys()
            except RuntimeError:
                store.close()
            else:
                store.set_timeout(_FOREVER)
                return store
        time.sleep(_RETRY_S)
    what = f"no connection to trainer rank 0 within {timeout_s:g} s (its address should be in {rendezvous})"
    raise SiteError(what, "see the log of trainer rank 0")


def _join(frames: Sequence[Frame]) -> torch.Tensor:
    """[number of frames, their lengths, their bytes]"""
    views = [memoryview(frame).cast("B") for frame in frames]
    head = torch.tensor([len(views), *(len(view) for view in views)], dtype=torch.int64).numpy().tobytes()
    return torch.frombuffer(bytearray().join([head, *views]), dtype=torch.uint8)


def _split(data: torch.Tensor) -> list[Frame]:
    view = data.numpy().data
    count = int.from_bytes(view[:8], "little")
    lengths = [int.from_bytes(view[8 * i : 8 * i + 8], "little") for i in range(1, count + 1)]
    frames: list[Frame] = []
    at = 8 * (count + 1)
    for length in lengths:
        frames.append(view[at : at + length])
        at += length
    return frames
