"""One collective of one epoch: rank 0 broadcasts buckets, the others receive them. Owns the stream and its deadlines.

The stream is `Opening, (BucketInfo, bytes)*, Closing`, then a barrier that tells the source that everything arrived.
If the source knows all buckets in advance their infos are in the Opening, and only bucket bytes follow it.
The deadline applies to every broadcast: if a peer stops or dies the epoch fails on all ranks within the deadline. A
rank that fails aborts its group, which fails the others at once. Only processes that know the epoch's secret can join;
data is not encrypted. The source's sockets bind to its host, a target's sockets to the address that faces the source.

Must not know who requests a transfer, nor how the buckets are used.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from types import TracebackType
from typing import Self

import msgspec
import torch

from rollart_hpc.types import WeightsId
from rollart_hpc.weights.forming import form
from rollart_hpc.weights.layout import BucketInfo, Manifest
from rollart_hpc.weights.meeting import Meeting, new_secret
from rollart_hpc.weights.meeting_store import MeetingStore
from rollart_hpc.weights.mpi import MpiWorld
from rollart_hpc.weights.process_groups import CPU, RankSetup, TransferError
from rollart_hpc.weights.store import check_bucket
from rollart_hpc.wire.interfaces import address_facing
from rollart_hpc.wire.ports import listen_tcp

log = logging.getLogger(__name__)

Allocate = Callable[[int, int], torch.Tensor]  # (index of the bucket, its bytes) -> a uint8 buffer
MAX_FRAME_BYTES = 256 << 20


class Opening(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    attempt: int
    version: int
    buckets: list[BucketInfo] = []  # all buckets, if known in advance; else each info precedes its bytes


class Bucket(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    """Announces a bucket; its bytes follow."""

    info: BucketInfo


class Closing(msgspec.Struct, frozen=True, tag=True, forbid_unknown_fields=True):
    digest: str


Frame = Opening | Bucket | Closing
_decoder = msgspec.json.Decoder(Frame)


@dataclass
class Rendezvous:
    """Where the targets of an epoch meet its source, and the secret that lets them in."""

    host: str
    port: int
    listener: socket.socket
    secret: str = field(default_factory=new_secret, repr=False)

    def open(self, deadline_s: float) -> MeetingStore:
        meeting = Meeting(self.listener, self.secret)
        return MeetingStore(self.host, self.port, self.secret, timedelta(seconds=deadline_s), meeting)


def open_rendezvous(host: str) -> Rendezvous:
    listener = listen_tcp(host)
    return Rendezvous(host, listener.getsockname()[1], listener)


class Sending:
    """The source's side of an epoch, rank 0. The constructor waits for the targets."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        size: int,
        deadline_s: float,
        device: torch.device = CPU,
        world: MpiWorld | None = None,
    ) -> None:
        store = rendezvous.open(deadline_s)
        self.group = form(store, RankSetup(0, size, rendezvous.host, deadline_s, device), world)

    def send(
        self,
        weights_id: WeightsId,
        buckets: Iterable[tuple[BucketInfo, torch.Tensor]],
        digest: Callable[[], str],
        infos: list[BucketInfo] | None = None,
    ) -> int:
        """Returns the bytes sent, once every target has them. `digest` is called after the last bucket.

        The next bucket is prepared while the last one is being sent, so a bucket's buffer is free two buckets later.
        """
        num_bytes = 0
        with self.group:
            self._put(Opening(weights_id.attempt, weights_id.version, infos or []))
            for info, raw in buckets:
                if not infos:
                    self._put(Bucket(info))
                if info.num_bytes:
                    self.group.start_broadcast(raw)
                num_bytes += info.num_bytes
            self._put(Closing(digest()))
            self.group.barrier()
        return num_bytes

    def _put(self, frame: Frame) -> None:
        data = bytearray(msgspec.json.encode(frame))
        self.group.broadcast(torch.tensor([len(data)], dtype=torch.int64, device=self.group.device))
        self.group.broadcast(torch.frombuffer(data, dtype=torch.uint8).to(self.group.device))


class _Room:
    """Buffers for buckets, each allocated in a thread while the one before it fills: allocation touches every page."""

    def __init__(self, allocate: Allocate, sizes: list[int]) -> None:
        self._allocate, self._sizes = allocate, sizes
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="room")
        self._next: Future[torch.Tensor] | None = None

    def take(self, index: int, num_bytes: int) -> torch.Tensor:
        ahead, self._next = self._next, None
        buffer = ahead.result() if ahead is not None else self._allocate(index, num_bytes)
        if buffer.numel() != num_bytes:
            raise TransferError(f"bucket {index} has {num_bytes} bytes, expected {buffer.numel()}")
        if index + 1 < len(self._sizes):
            self._next = self._thread.submit(self._allocate, index + 1, self._sizes[index + 1])
        return buffer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()


class Receiving:
    """A target's side of an epoch, ranks 1 and up. The constructor waits for the others.

    Use as a context manager; leaving it by an exception aborts the epoch for all.
    """

    def __init__(
        self,
        host: str,
        port: int,
        secret: str,
        rank: int,
        size: int,
        *,
        deadline_s: float,
        device: torch.device = CPU,
        world: MpiWorld | None = None,
    ) -> None:
        store = MeetingStore(host, port, secret, timedelta(seconds=deadline_s))
        self.group = form(store, RankSetup(rank, size, address_facing(host, port), deadline_s, device), world)
        self._infos: list[BucketInfo] = []
        self._closing: Closing | None = None
        self._opening = self._open()

    @property
    def weights_id(self) -> WeightsId:
        return WeightsId(self._opening.attempt, self._opening.version)

    def buckets(self, allocate: Allocate) -> Iterator[tuple[BucketInfo, torch.Tensor]]:
        """Yields each bucket, verified, in the buffer that `allocate` made for it.

        The next bucket arrives while this one is verified and used, so two buffers are in use at a time.
        """
        with _Room(allocate, [info.num_bytes for info in self._opening.buckets]) as room:
            arrived: torch.Tensor | None = None
            for info in self._announced():
                info.check()
                raw = room.take(len(self._infos), info.num_bytes)
                if info.num_bytes:
                    self.group.start_broadcast(raw)
                if arrived is not None:
                    yield self._verified(arrived)
                self.group.finish()
                self._infos.append(info)
                arrived = raw
            if arrived is not None:
                yield self._verified(arrived)

    def _verified(self, raw: torch.Tensor) -> tuple[BucketInfo, torch.Tensor]:
        """Verify the bucket that arrived last."""
        check_bucket(self._infos[-1], raw, f"bucket {len(self._infos) - 1} of the transfer")
        return self._infos[-1], raw

    def _announced(self) -> Iterator[BucketInfo]:
        """Yields each announced bucket. Receive its bytes before asking for the next one."""
        yield from self._opening.buckets
        while isinstance(frame := self._get(), Bucket):
            yield frame.info
        if not isinstance(frame, Closing):
            raise TransferError(f"unexpected {type(frame).__name__} in a weight transfer")
        self._closing = frame

    def manifest(self) -> Manifest:
        """The manifest of what was received. Call it only after the last bucket."""
        assert self._closing is not None, "the transfer is not over"
        return Manifest(self._opening.attempt, self._opening.version, self._closing.digest, self._infos)

    def acknowledge(self) -> None:
        """Tell the source that everything arrived. Our copy stays valid if other ranks fail: that is no error."""
        try:
            self.group.barrier()
        except TransferError as error:
            log.warning("the weights are complete here, but other ranks of the transfer failed: %s", error)

    def __enter__(self) -> Self:
        self.group.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.group.__exit__(kind, error, tb)

    def _open(self) -> Opening:
        try:
            frame = self._get()
        except TransferError:
            self.group.close(failed=True)
            raise
        assert isinstance(frame, Opening), "the stream begins with an Opening"
        return frame

    def _get(self) -> Frame:
        length = torch.zeros(1, dtype=torch.int64, device=self.group.device)
        self.group.broadcast(length)
        num_bytes = int(length.item())
        if not 0 < num_bytes <= MAX_FRAME_BYTES:
            raise TransferError(f"a weight transfer has a header of {num_bytes} bytes, expected 1 to {MAX_FRAME_BYTES}")
        data = torch.empty(num_bytes, dtype=torch.uint8, device=self.group.device)
        self.group.broadcast(data)
        try:
            return _decoder.decode(data.cpu().numpy().data)
        except msgspec.DecodeError as error:
            raise TransferError(f"a header of the weight transfer does not parse: {error}") from None
