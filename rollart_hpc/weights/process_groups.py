"""The process group of one epoch: the interface of every collective, and torch's collectives. Knows no buckets.

Every group has its own meeting on the source's host, which only its members can use. gloo moves CPU memory; NCCL moves
GPU memory, if the source's tensors are on a GPU; MPI (`mpi`) moves CPU memory between relays. `forming` chooses.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo  # type: ignore[attr-defined]

from rollart_hpc.errors import SiteError
from rollart_hpc.weights.chain import Chain
from rollart_hpc.weights.meeting_store import MeetingStore
from rollart_hpc.weights.proofs import prove
from rollart_hpc.wire.library_ports import hold_libraries

CPU = torch.device("cpu")


class TransferError(SiteError):
    """The collective of an epoch failed: a peer died, stopped or gave up. The next epoch is not affected."""


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turns torch's RuntimeErrors (a lost peer, a passed deadline) into TransferErrors."""
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
    deadline_s: float  # for forming the group, and for every operation
    device: torch.device = CPU


class ProcessGroup(ABC):
    """Rank 0 is the source. Leaving the context closes the group; leaving by an exception ends it for all ranks.

    A running operation can't be interrupted; it ends by its deadline.
    """

    device: torch.device

    @abstractmethod
    def start_broadcast(self, tensor: torch.Tensor) -> None:
        """Start a broadcast after the previous one completes. The tensor must not change until `finish`."""

    @abstractmethod
    def finish(self) -> None:
        """Wait for the broadcast that was started."""

    @abstractmethod
    def barrier(self) -> None:
        """Wait until all ranks get here."""

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
    def __init__(self, store: MeetingStore, setup: RankSetup) -> None:
        """Waits for all ranks, until the deadline at most. The setup's device decides between gloo and NCCL.

        gloo takes any connection, so the members prove to each other who they are. NCCL takes only those with the
        random number in its id, which only members find in the store.
        """
        self._store = store  # must live as long as the group
        self._deadline = timedelta(seconds=setup.deadline_s)
        self._work: Any = None
        self._passing: Future[str] | None = None
        self.device = setup.device
        with explained("could not form the group of a weight transfer"):
            prefixed = PrefixStore("group", store)
            hold_libraries()
            self._group: Any = _gloo(prefixed, setup) if self.device.type == "cpu" else _nccl(prefixed, setup)
            if self.device.type == "cpu":
                prove(self._group, prefixed, store.secret, self._deadline)
        self._chain = Chain(self._group, self._deadline) if self.device.type == "cpu" else None

    def start_broadcast(self, tensor: torch.Tensor) -> None:
        self.finish()
        with explained("weight broadcast failed"):
            if self._chain is not None and self._chain.takes(tensor):
                self._passing = self._chain.start(tensor)
            else:
                self._work = self._group.broadcast(tensor, 0, self._deadline)

    def finish(self) -> None:
        work, self._work = self._work, None
        passing, self._passing = self._passing, None
        with explained("weight broadcast failed"):
            if work is not None:
                work.wait(self._deadline)
            if passing is not None and (problem := passing.result()):
                raise RuntimeError(problem)

    def barrier(self) -> None:
        """A reduction of one number, because gloo's barrier has no deadline."""
        self.finish()
        with explained("final barrier of the weight transfer failed"):
            one = torch.ones(1, dtype=torch.int32, device=self.device)
            self._group.allreduce(one, timeout=self._deadline).wait(self._deadline)
            one.cpu()

    def close(self, failed: bool = False) -> None:
        """Close all connections. The others see a lost peer, unless the transfer is complete."""
        group, self._group = self._group, None
        self._work = self._passing = None  # they also hold the connections
        if self._chain is not None:
            self._chain.close()
        if group is not None and self.device.type != "cpu":
            group.abort() if failed else group.shutdown()
        # gloo has neither: its connections close when the last reference is dropped, below
        del group
        self._store.close()


def _gloo(store: PrefixStore, setup: RankSetup) -> Any:
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timedelta(seconds=setup.deadline_s)
    options._devices = [ProcessGroupGloo.create_device(hostname=setup.host)]
    return ProcessGroupGloo(store, setup.rank, setup.size, options)


def _nccl(store: PrefixStore, setup: RankSetup) -> Any:
    """Written from PyTorch's documentation; not tested on GPUs.

    A lost peer must fail this call, not the process. So waiting blocks until the deadline, the watchdog cleans up
    without ending the process (2 = CleanUpOnly), and the monitor of the watchdog, which would end it, is off.
    NCCL waits forever for a missing peer. So all ranks meet at the store first, which has the deadline, and the
    communicator is non-blocking. Connecting eagerly finds a missing peer here instead of at the first bucket.
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
