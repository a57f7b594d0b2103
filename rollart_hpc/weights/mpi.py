"""A world of relays under one MPI launcher. Owns mpi4py; knows nothing of buckets.

launcher    mpiexec on one machine, srun --mpi=... on a cluster. A rank finds its relay in a list on the command line;
            the launcher's variables don't matter
threads     MPI needs MPI_THREAD_SERIALIZED: one epoch uses the world at a time, and all its calls come from one
            thread. An epoch that finds the world in use falls back to gloo
waiting     nothing blocks inside MPI: an operation is started, then polled between short sleeps until it completes or
            its deadline passes. MPI has no file descriptor to wait for, and polling without sleeps would take a core
            from the engines
failures    a communicator can't be trusted after a failed operation. A rank that sees one leaves the world for good
            and uses gloo from then on
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from rollart_hpc.errors import SiteError
from rollart_hpc.weights.process_groups import CPU, ProcessGroup, TransferError

log = logging.getLogger(__name__)

_SHORTEST_SLEEP_S, _LONGEST_SLEEP_S = 1e-4, 5e-3
_NOTICE_S = 0.25  # how often a waiting rank checks whether another one gave up


class MpiWorld:
    """This process's rank among the relays that were started together."""

    def __init__(self, name: str, start_timeout_s: float) -> None:
        """Waits for all ranks. MPI_Init hangs if one is missing, so SIGALRM ends this process at the timeout."""
        self._MPI = _initialised(start_timeout_s)
        self._comm: Any = self._MPI.COMM_WORLD.Dup()
        signal.alarm(0)
        self.rank: int = self._comm.rank
        self.size: int = self._comm.size
        self._name = name  # unique for every world
        self._lock = threading.Lock()
        self._left = ""
        self._unfinished: list[Any] = []  # requests that never completed: MPI may still use their memory

    @property
    def place(self) -> str:
        """Sent to the source of an epoch; empty if this process can't take part over MPI."""
        return "" if self._left else f"{self._name}:{self.rank}"

    def contains_all(self, places: list[str]) -> bool:
        """True if these are all ranks of this world. A broadcast needs all of them; fewer use gloo."""
        return bool(self.place) and set(places) == {f"{self._name}:{rank}" for rank in range(self.size)}

    def leave(self, reason: str) -> None:
        if not self._left:
            self._left = reason
            log.warning("leaving the MPI world; weight transfers use gloo from now on: %s", reason)

    def enter(self) -> bool:
        """Reserve the world for one epoch; False if another epoch uses it."""
        return self._lock.acquire(blocking=False)

    def exit(self) -> None:
        self._lock.release()

    def close(self) -> None:
        """Call at the end of a run, on all ranks (it blocks otherwise), from the thread that created the world."""
        if not self._left and self.enter():
            self._MPI.Finalize()

    # --- operations of an epoch, all from one thread -----------------------------------------------

    def broadcast(self, raw: memoryview, root: int, wait: Callable[[Any], None]) -> None:
        wait(self._comm.Ibcast([raw, self._MPI.BYTE], root))

    def barrier(self, wait: Callable[[Any], None]) -> None:
        wait(self._comm.Ibarrier())

    def abandon(self, request: Any) -> None:
        self._unfinished.append(request)

    @property
    def error(self) -> type[Exception]:
        kind: type[Exception] = self._MPI.Exception
        return kind


def _initialised(timeout_s: float) -> Any:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(max(1, int(timeout_s)))
    try:
        import mpi4py

        mpi4py.rc.finalize = False  # a lost rank would hang the exit of this process
        mpi4py.rc.threads = True
        mpi4py.rc.thread_level = "serialized"
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        fix = "pip install mpi4py mpich, or set weights.collective=gloo"
        raise SiteError(f"can't use MPI: {error}", fix) from None
    return MPI


class MpiProcessGroup(ProcessGroup):
    """An epoch of all relays of a world.

    gave_up   whether another rank aborted
    give_up   tell the others that this one did
    release   at the end of an epoch that went well
    """

    device = CPU

    def __init__(
        self,
        world: MpiWorld,
        root: int,
        deadline_s: float,
        gave_up: Callable[[], bool],
        give_up: Callable[[], None],
        release: Callable[[], None],
    ) -> None:
        self._world, self._root, self._deadline_s = world, root, deadline_s
        self._gave_up, self._give_up, self._release = gave_up, give_up, release
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mpi")
        self._work: Future[None] | None = None
        self._is_open = True

    def start_broadcast(self, tensor: torch.Tensor) -> None:
        self.finish()
        raw = tensor.view(torch.uint8).numpy().data
        self._work = self._thread.submit(self._do, self._world.broadcast, raw, self._root)

    def finish(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.result()

    def barrier(self) -> None:
        self.finish()
        self._thread.submit(self._do, self._world.barrier).result()

    def close(self, failed: bool = False) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if failed:
            self._world.leave("a transfer failed")
            self._give_up()
        self._thread.shutdown()  # a running operation ends by its deadline
        self._world.exit()
        if not failed:
            self._release()

    def _do(self, operation: Callable[..., None], *args: object) -> None:
        if self._world.place == "":
            raise TransferError("weight transfer: this process has left the MPI world")
        try:
            operation(*args, self._wait)
        except self._world.error as error:
            self._world.leave(str(error))
            raise TransferError(f"weight transfer over MPI: {error}") from None
        except TransferError as error:
            self._world.leave(error.what)
            raise

    def _wait(self, request: Any) -> None:
        """Wait for the operation. Sleeps grow with the time waited: short while data flows, long for a stopped peer."""
        began_s = looked_s = time.monotonic()
        while not request.Test():
            now = time.monotonic()
            if now - began_s > self._deadline_s:
                self._world.abandon(request)
                raise TransferError(f"weight transfer over MPI: no progress in {self._deadline_s:g} s")
            if now - looked_s > _NOTICE_S:
                looked_s = now
                if self._gave_up():
                    self._world.abandon(request)
                    raise TransferError("weight transfer over MPI: another rank gave up")
            time.sleep(min(_LONGEST_SLEEP_S, max(_SHORTEST_SLEEP_S, (now - began_s) / 1000)))
