"""Publishes new weights. Owns the copy that others read; knows nothing of steps.

    staged   written to the node's shared memory, where its relay takes over
    direct   copied in memory; a thread sends the copy to engines when the controller asks for it

The copy is complete before the next step can change the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

import torch

from rollart_hpc.types import WeightsId
from rollart_hpc.weights.digest import digest
from rollart_hpc.weights.direct import DirectSource
from rollart_hpc.weights.store import NodeStore
from rollart_hpc.wire.messages import Message, TransferFailed, TransferOffer

Named = Iterable[tuple[str, torch.Tensor]]

_KEEP_VERSIONS = 3  # the relay keeps fewer; this limits shared memory while no relay runs


class Copied(NamedTuple):
    num_bytes: int
    digest: str


class Publisher(Protocol):
    def publish(self, weights_id: WeightsId, named: Named) -> Copied:
        """Copy the weights."""

    def offer(self, offer: TransferOffer) -> None:
        """The controller asks to send the weights."""

    def is_sending(self) -> bool:
        """True while a thread sends weights or waits for targets."""


class Staged:
    def __init__(self, store: NodeStore, bucket_bytes: int) -> None:
        self._store = store
        self._bucket_bytes = bucket_bytes

    def publish(self, weights_id: WeightsId, named: Named) -> Copied:
        manifest = self._store.write(weights_id, named, self._bucket_bytes)
        self._store.prune(_KEEP_VERSIONS)
        return Copied(manifest.num_bytes, manifest.digest)

    def offer(self, offer: TransferOffer) -> None:
        raise AssertionError("staged weights are sent by relays")

    def is_sending(self) -> bool:
        return False


class Direct:
    def __init__(self, source: DirectSource, report: Callable[[Message], None]) -> None:
        self._source = source
        self._report = report
        self._weights_id: WeightsId | None = None
        self._snapshot: dict[str, torch.Tensor] = {}

    def publish(self, weights_id: WeightsId, named: Named) -> Copied:
        self._snapshot = {}  # frees the old copy before making the new one, unless it is still being sent
        self._snapshot = {name: tensor.detach().to("cpu", copy=True) for name, tensor in named}
        self._weights_id = weights_id
        return Copied(sum(tensor.nbytes for tensor in self._snapshot.values()), digest(self._snapshot.items()))

    def offer(self, offer: TransferOffer) -> None:
        wanted = WeightsId(offer.attempt, offer.version)
        if wanted != self._weights_id:
            self._report(TransferFailed(offer.epoch, f"the trainer holds {self._weights_id}, expected {wanted}"))
            return
        snapshot = self._snapshot
        self._source.offer(offer.epoch, offer.size, wanted, snapshot.items)

    def is_sending(self) -> bool:
        return self._source.busy()
