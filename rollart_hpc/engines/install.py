"""Getting new weights ready beside the generating engine. Owns the thread that waits for them; installs nothing itself.

What takes time but does not need the engine to stand still happens in the thread: mapping and checking buckets in
shared memory (staged), waiting for the other ranks of a collective (direct). Only the copy is left to the engine.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from rollart_hpc.errors import RollartError
from rollart_hpc.types import WeightsId
from rollart_hpc.weights.direct import DirectTarget
from rollart_hpc.weights.store import NodeStore
from rollart_hpc.wire.messages import Install, InstallFailed, Message, TransferFailed, TransferJoin

Order = Install | TransferJoin


@dataclass(slots=True)
class Prepared:
    """Weights that can be installed now, or why not."""

    order: Order
    asked_s: float
    named: Iterable[tuple[str, torch.Tensor]] | None = None
    num_bytes: Callable[[], int] = lambda: 0  # known once the weights are through
    error: str = ""

    @property
    def weights_id(self) -> WeightsId:
        return WeightsId(self.order.attempt, self.order.version)

    def failed(self, reason: str) -> Message:
        """What the controller is told: it forms a broken collective again, or asks for the install again."""
        if isinstance(self.order, TransferJoin):
            return TransferFailed(self.order.epoch, reason)
        return InstallFailed(self.order.attempt, self.order.version, reason)


class Preparer:
    """Takes orders one after the other; `wake` is called from its thread whenever `ready` has something new."""

    def __init__(self, store: NodeStore, deadline_s: float, device: torch.device, wake: Callable[[], None]) -> None:
        self.ready: queue.SimpleQueue[Prepared] = queue.SimpleQueue()
        self._orders: queue.SimpleQueue[tuple[Order, float] | None] = queue.SimpleQueue()
        self._store = store
        self._deadline_s = deadline_s
        self._device = device
        self._wake = wake
        self._thread = threading.Thread(target=self._run, name="weights", daemon=True)
        self._thread.start()

    def order(self, order: Order) -> None:
        self._orders.put((order, time.monotonic()))

    def close(self) -> None:
        """Does not wait: the thread is a daemon and may sit in a collective until its deadline."""
        self._orders.put(None)

    def _run(self) -> None:
        while (item := self._orders.get()) is not None:
            prepared = Prepared(*item)
            try:
                self._prepare(prepared)
            except (RollartError, OSError) as error:
                prepared.error = str(error)
            self.ready.put(prepared)
            self._wake()

    def _prepare(self, prepared: Prepared) -> None:
        source: Any
        if isinstance(prepared.order, TransferJoin):
            source = DirectTarget(prepared.order, self._deadline_s, self._device)
            prepared.num_bytes = lambda: source.num_bytes
        else:
            source = self._store.open(prepared.weights_id)
            source.verify()
            prepared.num_bytes = lambda: source.manifest.num_bytes
        prepared.named = source
