"""Prepares new weights while the engine generates. Owns the thread that waits for them; installs nothing itself.

The thread does the slow work that does not require a paused engine: mapping and verifying buckets in shared memory
(staged), or waiting for the other ranks of a collective (direct). The engine only has to copy.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from rollart_hpc.errors import RollartError
from rollart_hpc.types import WeightsId
from rollart_hpc.weights.direct import DirectTarget
from rollart_hpc.weights.process_groups import CPU
from rollart_hpc.weights.store import NodeStore
from rollart_hpc.wire.messages import Install, InstallFailed, Message, TransferFailed, TransferJoin, clip

log = logging.getLogger(__name__)

Order = Install | TransferJoin


@dataclass(slots=True)
class Prepared:
    """Weights that are ready to install, or the reason why they are not."""

    order: Order
    asked_s: float
    named: Iterable[tuple[str, torch.Tensor]] | None = None
    num_bytes: Callable[[], int] = lambda: 0  # known once all weights have arrived
    error: str = ""

    @property
    def weights_id(self) -> WeightsId:
        return WeightsId(self.order.attempt, self.order.version)

    def failed(self, reason: str) -> Message:
        """The message for the controller, which then forms the collective again or repeats the install."""
        if isinstance(self.order, TransferJoin):
            return TransferFailed(self.order.epoch, clip(reason))
        return InstallFailed(self.order.attempt, self.order.version, clip(reason))


class Preparer:
    """Processes one order at a time. Its thread calls `wake` whenever it adds something to `ready`.

    The thread lives while there are orders. It is not a daemon, because torch crashes if Python exits during an
    operation. It ends at the deadline of its collective at the latest.
    """

    def __init__(
        self, store: NodeStore, deadline_s: float, device: torch.device | None, wake: Callable[[], None]
    ) -> None:
        """`device`: the engine's device, see `contract.Engine.device`."""
        self.ready: queue.SimpleQueue[Prepared] = queue.SimpleQueue()
        self._orders: deque[tuple[Order, float]] = deque()
        self._lock = threading.Lock()
        self._busy = False
        self._store = store
        self._deadline_s = deadline_s
        self._device = device
        self._wake = wake

    def order(self, order: Order) -> None:
        with self._lock:
            self._orders.append((order, time.monotonic()))
            if self._busy:
                return
            self._busy = True
        threading.Thread(target=self._run, name="weights").start()

    def close(self) -> None:
        """Drop the orders that have not started. Does not wait: a collective may last until its deadline."""
        with self._lock:
            self._orders.clear()

    def is_busy(self) -> bool:
        with self._lock:
            return self._busy

    def _run(self) -> None:
        while (item := self._next()) is not None:
            prepared = Prepared(*item)
            try:
                self._prepare(prepared)
            except (RollartError, OSError) as error:
                prepared.error = str(error)
            except Exception as error:  # report every failure to the controller
                log.exception("could not prepare weights %s", prepared.weights_id)
                prepared.error = f"{type(error).__name__}: {error}"
            self.ready.put(prepared)
            self._wake()

    def _next(self) -> tuple[Order, float] | None:
        with self._lock:
            self._busy = bool(self._orders)
            return self._orders.popleft() if self._busy else None

    def _prepare(self, prepared: Prepared) -> None:
        source: Any
        if isinstance(prepared.order, TransferJoin):
            source = DirectTarget(prepared.order, self._deadline_s, self._device or CPU)
            if self._device is not None:
                source.connect()
        else:
            source = self._store.open(prepared.weights_id)
            source.verify()
        prepared.named = source
        prepared.num_bytes = lambda: source.num_bytes
