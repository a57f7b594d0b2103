"""The process group of one epoch. Owns torch.distributed; knows nothing of buckets.

A group has a TCPStore of its own on the source's host. gloo moves memory of the CPU; NCCL, if the source's tensors lie
on a GPU, moves memory of GPUs. The source names the backend in the store, so both sides agree.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore  # type: ignore[attr-defined]

from rollart_hpc.errors import SiteError

CPU = torch.device("cpu")
_BACKEND_KEY = "backend"


class TransferError(SiteError):
    """The collective of an epoch broke: a peer is gone or stopped, or gave up. The next epoch is not affected."""


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """torch reports every lost peer and passed deadline as a RuntimeError of some kind."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("] ")[2] or str(error)
        raise TransferError(f"{what}: {reason.splitlines()[0][:200]}") from None


@dataclass(frozen=True)
class Seat:
    """One process's place in a group."""

    rank: int
    size: int
    host: str  # address to bind to
    deadline_s: float  # of forming the group, and of every operation
    device: torch.device = CPU


class Group:
    """Rank 0 is the source. Leaving the context closes it; by an exception that ends it for the others at once.

    An operation under way can't be broken from outside; it ends by its deadline.
    """

    def __init__(self, store: TCPStore, seat: Seat) -> None:
        """Waits for all ranks, at most the deadline."""
        self._store: TCPStore | None = store  # lives as long as the group
        self._deadline = timedelta(seconds=seat.deadline_s)
        self._work: Any = None
        with _explained("forming the group of a weight transfer"):
            self.device = _agree(store, seat)
            prefixed = PrefixStore("group", store)
            self._group: Any = _gloo(prefixed, seat) if self.device.type == "cpu" else _nccl(prefixed, seat)

    def start_broadcast(self, tensor: torch.Tensor) -> None:
        """Begin, once the last one is over; the tensor must stay as it is until `finish`."""
        self.finish()
        with _explained("weight transfer"):
            self._work = self._group.broadcast(tensor, 0, self._deadline)

    def finish(self) -> None:
        """Wait for what was started."""
        work, self._work = self._work, None
        if work is not None:
            with _explained("weight transfer"):
                work.wait(self._deadline)

    def broadcast(self, tensor: torch.Tensor) -> None:
        self.start_broadcast(tensor)
        self.finish()

    def barrier(self) -> None:
        """gloo's own barrier has no deadline of its own, so it is a reduction of one number."""
        with _explained("end of the weight transfer"):
            one = torch.ones(1, dtype=torch.int32, device=self.device)
            self._group.allreduce(one, timeout=self._deadline).wait(self._deadline)
            one.cpu()

    def close(self, failed: bool = False) -> None:
        """Close all connections: to the others it looks like a lost peer, unless the transfer was over."""
        group, self._group = self._group, None
        self._work = None  # it holds the connections too
        if group is not None and failed and self.device.type != "cpu":
            group.abort()  # gloo has no abort: its connections close when the last reference goes, below
        self._store = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close(failed=error is not None)


def _agree(store: TCPStore, seat: Seat) -> torch.device:
    """The source decides; a target without a GPU can't join a group on GPUs."""
    if seat.rank == 0:
        store.set(_BACKEND_KEY, seat.device.type)
        return seat.device
    wanted = store.get(_BACKEND_KEY).decode()
    if wanted == "cpu":
        return CPU
    if seat.device.type != wanted:
        raise TransferError(f"the source sends from {wanted} memory, this process has {seat.device.type} memory only")
    return seat.device


def _gloo(store: PrefixStore, seat: Seat) -> Any:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=seat.deadline_s)
    options._devices = [ProcessGroupGloo.create_device(hostname=seat.host)]
    return ProcessGroupGloo(store, seat.rank, seat.size, options)


def _nccl(store: PrefixStore, seat: Seat) -> Any:
    """Written from PyTorch's documentation; has not been run on GPUs.

    A lost peer must break this call, not the process: waiting blocks with the deadline, and the watchdog cleans up
    without tearing the process down (2 = CleanUpOnly). The interface is the site's NCCL_SOCKET_IFNAME.
    """
    from torch.distributed import ProcessGroupNCCL

    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=seat.deadline_s)
    group = ProcessGroupNCCL(store, seat.rank, seat.size, options)
    group.eager_connect_single_device(seat.device)
    return group


def open_store(listener: socket.socket, host: str, deadline_s: float) -> TCPStore:
    """The source's store, on a socket that listens already."""
    port = listener.getsockname()[1]
    with _explained("opening a weight transfer"):
        return TCPStore(
            host, port, None, True, timedelta(seconds=deadline_s), False, master_listen_fd=listener.detach()
        )


def join_store(host: str, port: int, deadline_s: float) -> TCPStore:
    with _explained(f"joining the weight transfer at {host}:{port}"):
        return TCPStore(host, port, None, False, timedelta(seconds=deadline_s), False)
