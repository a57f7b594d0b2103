"""One collective of one epoch: rank 0 broadcasts buckets, the others receive them. Owns groups and their deadlines.

Every epoch has a TCPStore and a process group of its own, never the default group, so a broken epoch leaves nothing
behind. The stream is `Opening, (BucketInfo, bytes)*, Closing`, then a barrier that tells the source that all arrived.
Every broadcast has the deadline: a peer that is stopped or gone breaks the epoch on all sides within it, and a side
that breaks aborts its group, which breaks the others at once. Data is not encrypted; the sockets are bound to the
source's host and, on the other side, to the address that faces it.

Must not know who asks for a transfer, nor what becomes of the buckets.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec
import torch

from rollart_hpc.errors import SiteError
from rollart_hpc.types import WeightsId
from rollart_hpc.weights.groups import Group, TransferError, join_store, open_store
from rollart_hpc.weights.layout import BucketInfo, Manifest
from rollart_hpc.weights.store import check_bucket

log = logging.getLogger(__name__)

Allocate = Callable[[int, int], torch.Tensor]  # (index of the bucket, its bytes) -> a uint8 buffer


class Opening(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    attempt: int
    version: int


class Bucket(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    info: BucketInfo


class Closing(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    digest: str


_frames = msgspec.json.Decoder(Opening | Bucket | Closing)


@dataclass
class Rendezvous:
    """Where the targets of an epoch meet its source. The port is the system's choice."""

    host: str
    port: int
    listener: socket.socket

    def close(self) -> None:
        self.listener.close()


def open_rendezvous(host: str) -> Rendezvous:
    try:
        listener = socket.create_server((host, 0), family=_family(host))
    except OSError as error:
        raise SiteError(f"can't listen on {host} for a weight transfer: {error}", "see data interface of the site") from None
    return Rendezvous(host, listener.getsockname()[1], listener)


def send(
    rendezvous: Rendezvous,
    size: int,
    weights_id: WeightsId,
    buckets: Iterable[tuple[BucketInfo, torch.Tensor]],
    digest: Callable[[], str],
    deadline_s: float,
    device: torch.device | None = None,
) -> int:
    """Rank 0. Returns the bytes sent once every target has them; raises TransferError. `digest` is asked for last.

    The next bucket is made while the last one travels, so `buckets` may reuse a buffer from the next but one on.
    """
    num_bytes = 0
    store = open_store(rendezvous.listener, rendezvous.host, deadline_s)
    with Group(store, 0, size, rendezvous.host, deadline_s, device) as group:
        _put(group, Opening(weights_id.attempt, weights_id.version))
        finish: Callable[[], None] = _nothing
        for info, raw in buckets:
            finish()
            _put(group, Bucket(info))
            finish = group.start_broadcast(raw) if info.num_bytes else _nothing
            num_bytes += info.num_bytes
        finish()
        _put(group, Closing(digest()))
        group.barrier()
    return num_bytes


class Reception:
    """One target's side of an epoch; iterate to receive. Leaving the context early aborts the epoch for all."""

    def __init__(self, host: str, port: int, rank: int, size: int, deadline_s: float) -> None:
        store = join_store(host, port, deadline_s)
        self._group = Group(store, rank, size, _address_facing(host, port), deadline_s)
        self._infos: list[BucketInfo] = []
        self._digest: str | None = None

    def __enter__(self) -> Reception:
        ...
