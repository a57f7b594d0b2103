"""The group of one epoch: what every collective must offer, and the ones of torch. Knows nothing of buckets.

A group has a TCPStore of its own on the source's host. gloo moves memory of the CPU; NCCL, if the source's tensors lie
on a GPU, moves memory of GPUs; MPI (`mpi`) moves memory of the CPU between relays. `forming` decides which it is.
"""

from __future__ import annotations

import math
import os
import socket
from abc import ABC, abstractmethod
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


class TransferError(SiteError):
    """The collective of an epoch broke: a peer is gone or stopped, or gave up. The next epoch is not affected."""


@contextmanager
def explained(what: str) -> Iterator[None]:
    """torch reports every lost peer and passed deadline as a RuntimeError of some kind."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("] ")[2] or str(error)
        raise TransferError(f"{what}: {reason.splitlines()[0][:200]}") from None


@dataclass(frozen=True)
class RankSetup:
    """One process's place in a group."""

    rank: int
    size: int
    host: str  # address to bind to
    deadline_s: float  # of forming the group, and of every operation
    device: torch.device = CPU


class ProcessGroup(ABC):
    """Rank 0 is the source. Leaving the context closes it; by an exception that ends it for the others at once.

    An operation under way can't be broken from outside; it ends by its deadline.
    """

    device: torch.device

    @abstractmethod
    def start_broadcast(self, tensor: torch.Tensor) -> None:
        """Begin, once the last one is over; the tensor must stay as it is until `finish`."""

    @abstractmethod
    def finish(self) -> None:
        """Wait for what was started."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until all are here."""

    @abstractmethod
    def close(self, failed: bool = False) -> None:
        """`failed` ends the epoch for the others too."""

    def broadcast(self, tensor: torch.Tensor) -> None:
        self.start_broadcast(tensor)
        self.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close(failed=error is not None)


class TorchProcessGroup(ProcessGroup):
    def __init__(self, store: TCPStore, setup: RankSetup) -> None:
        """Waits for all ranks, at most the deadline. The setup's device decides between gloo and NCCL."""
        self._store: TCPStore | None = store  # lives as long as the group
        self._deadline = timedelta(seconds=setup.deadline_s)
        self._work: Any = None
        self.device = setup.device
        with explained("forming the group of a weight transfer"):
            prefixed = PrefixStore("group", store)
            self._group: Any = _gloo(prefixed, setup) if self.device.type == "cpu" else _nccl(prefixed, setup)

    def start_broadcast(self, tensor: torch.Tensor) -> None:
        self.finish()
        with explained("weight transfer"):
            self._work = self._group.broadcast(tensor, 0, self._deadline)

    def finish(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            with explained("weight transfer"):
                work.wait(self._deadline)

    def barrier(self) -> None:
        """gloo's own barrier has no deadline of its own, so it is a reduction of one number."""
        self.finish()
        with explained("end of the weight transfer"):
            one = torch.ones(1, dtype=torch.int32, device=self.device)
            self._group.allreduce(one, timeout=self._deadline).wait(self._deadline)
            one.cpu()

    def close(self, failed: bool = False) -> None:
        """Close all connections: to the others it looks like a lost peer, unless the transfer was over."""
        group, self._group = self._group, None
        self._work = None  # it holds the connections too
        if group is not None and self.device.type != "cpu":
            group.abort() if failed else group.shutdown()
        # gloo has neither: its connections close with the last reference, below
        self._store = None


def _gloo(store: PrefixStore, setup: RankSetup) -> Any:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=setup.deadline_s)
    options._devices = [ProcessGroupGloo.create_device(hostname=setup.host)]
    return ProcessGroupGloo(store, setup.rank, setup.size, options)


def _nccl(store: PrefixStore, setup: RankSetup) -> Any:
    """Written from PyTorch's documentation; has not been run on GPUs.

    A lost peer must break this call, not the process: waiting blocks with the deadline, the watchdog cleans up
    without tearing the process down (2 = CleanUpOnly), and nothing watches the watchdog, for that one ends processes.
    NCCL waits for ever for a peer that never comes: so all meet at the store first, which has the deadline, and the
    communicator is one that does not block. Connecting eagerly finds a missing peer here and not in the first bucket.
    The interface is the site's NCCL_SOCKET_IFNAME.
    """
    from torch.distributed import ProcessGroupNCCL

    _meet(store, setup)
    os.environ.setdefault("TORCH_NCCL_NONBLOCKING_TIMEOUT", str(math.ceil(setup.deadline_s)))
    os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
    os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=setup.deadline_s)
    options.config.blocking = 0
    group = ProcessGroupNCCL(store, setup.rank, setup.size, options)
    group.eager_connect_single_device(setup.device)
    return group


def _meet(store: PrefixStore, setup: RankSetup) -> None:
    store.set(f"here/{setup.rank}", "")
    store.wait([f"here/{rank}" for rank in range(setup.size)], timedelta(seconds=setup.deadline_s))


def open_store(listener: socket.socket, host: str, deadline_s: float) -> TCPStore:
    """The source's store, on a socket that listens already."""
    port = listener.getsockname()[1]
    with explained("opening a weight transfer"):
        return TCPStore(
            host, port, None, True, timedelta(seconds=deadline_s), False, master_listen_fd=listener.detach()
        )


def join_store(host: str, port: int, deadline_s: float) -> TCPStore:
    with explained(f"joining the weight transfer at {host}:{port}"):
        return TCPStore(host, port, None, False, timedelta(seconds=deadline_s), False)
