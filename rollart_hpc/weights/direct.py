"""Sends weights from the trainer directly into engines, without a relay. Owns the buckets in transit.

The source alternates between two buckets: it fills one while the other is being sent, so at most two are in memory
beside the model. A target yields tensors as they arrive. A failed epoch leaves the target with weights of two
versions: the engine must not generate before its next complete install.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator

import torch
import xxhash

from rollart_hpc.errors import SiteError
from rollart_hpc.types import WeightsId
from rollart_hpc.weights.digest import Digest, dtype_name, raw_bytes
from rollart_hpc.weights.forming import collective_of
from rollart_hpc.weights.layout import BucketInfo, Packer, TensorInfo
from rollart_hpc.weights.process_groups import CPU, TransferError
from rollart_hpc.weights.store import views
from rollart_hpc.weights.transfer import Receiving, Rendezvous, Sending, open_rendezvous
from rollart_hpc.wire.messages import Message, TransferFailed, TransferJoin, TransferReady, TransferSent, clip

log = logging.getLogger(__name__)

Named = Iterable[tuple[str, torch.Tensor]]


class BucketStream:
    """Packs named tensors into buckets. Iterate once; `digest` is complete afterwards."""

    def __init__(self, named: Named, bucket_bytes: int, device: torch.device = CPU) -> None:
        self.digest = Digest()
        self._named = named
        self._bucket_bytes = bucket_bytes
        self._device = device
        self._buffers: list[torch.Tensor] = []
        self._infos: list[TensorInfo] = []
        self._used = 0

    def __iter__(self) -> Iterator[tuple[BucketInfo, torch.Tensor]]:
        packer, current = Packer(self._bucket_bytes), 0
        for name, tensor in self._named:
            num_bytes = tensor.numel() * tensor.element_size()
            bucket, offset = packer.place(num_bytes)
            if bucket != current:
                yield self._take(current)
                current = bucket
            raw = self._buffer(bucket, offset + num_bytes)
            self._add(raw, TensorInfo(name, dtype_name(tensor.dtype), list(tensor.shape), offset), tensor)
        if self._infos:
            yield self._take(current)

    def _buffer(self, bucket: int, num_bytes: int) -> torch.Tensor:
        """A buffer of the bucket size, or of the tensor's if that is larger. On CPU only filled pages take memory."""
        if bucket >= len(self._buffers) and bucket < 2:
            self._buffers.append(torch.empty(self._bucket_bytes, dtype=torch.uint8, device=self._device))
        if self._buffers[bucket % 2].numel() < num_bytes:
            assert self._used == 0, "a bucket grows only while it is empty"
            self._buffers[bucket % 2] = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        return self._buffers[bucket % 2]

    def _add(self, raw: torch.Tensor, info: TensorInfo, tensor: torch.Tensor) -> None:
        raw[self._used : info.offset].zero_()
        self._used = info.offset + info.num_bytes
        part = raw[info.offset : self._used]
        part.copy_(tensor.detach().contiguous().reshape(-1).view(torch.uint8))
        self._infos.append(info)
        self.digest.add(info.name, tensor, raw_bytes(part))

    def _take(self, bucket: int) -> tuple[BucketInfo, torch.Tensor]:
        raw = self._buffers[bucket % 2][: self._used]
        info = BucketInfo(self._used, xxhash.xxh3_64_hexdigest(raw_bytes(raw)), self._infos)
        self._infos, self._used = [], 0
        return info, raw


class DirectSource:
    """The trainer's side. Sends in its own threads, which call `report`.

    `snapshot` in `offer` returns the tensors of exactly `weights_id`. It runs in the sending thread, and its tensors
    must not change until TransferSent or TransferFailed is reported.
    """

    def __init__(
        self,
        host: str,
        *,
        bucket_bytes: int,
        deadline_s: float,
        report: Callable[[Message], None],
        device: torch.device = CPU,
    ) -> None:
        self._host = host
        self._bucket_bytes = bucket_bytes
        self._deadline_s = deadline_s
        self._report = report
        self._device = device
        self._threads: list[threading.Thread] = []

    def offer(self, epoch: int, size: int, weights_id: WeightsId, snapshot: Callable[[], Named]) -> None:
        """Open an epoch for `size` ranks. Returns at once, after reporting TransferReady or TransferFailed."""
        try:
            rendezvous = open_rendezvous(self._host)
        except SiteError as error:
            log.warning("weight transfer %d failed: %s", epoch, error)
            self._report(TransferFailed(epoch, clip(str(error))))
            return
        thread = threading.Thread(
            target=self._send,
            args=(epoch, size, weights_id, snapshot, rendezvous),
            name=f"transfer-{epoch}",  # not a daemon: torch crashes if Python exits during an operation
        )
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()
        self._report(TransferReady(epoch, rendezvous.host, rendezvous.port, rendezvous.secret))

    def busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def join(self, timeout_s: float | None = None) -> None:
        for thread in self._threads:
            thread.join(timeout_s)

    def _send(
        self, epoch: int, size: int, weights_id: WeightsId, snapshot: Callable[[], Named], rendezvous: Rendezvous
    ) -> None:
        start_s = time.monotonic()
        try:
            sending = Sending(rendezvous, size, self._deadline_s, self._device)
            stream = BucketStream(snapshot(), self._bucket_bytes, self._device)
            num_bytes = sending.send(weights_id, stream, stream.digest.hexdigest)
        except Exception as error:  # report every failure to the controller
            level = logging.WARNING if isinstance(error, SiteError) else logging.ERROR
            log.log(level, "weight transfer %d failed: %s", epoch, error)
            self._report(TransferFailed(epoch, clip(str(error))))
        else:
            collective = collective_of(sending.group)
            self._report(TransferSent(epoch, num_bytes, time.monotonic() - start_s, collective))


class DirectTarget:
    """The engine's side: iterate once for (name, tensor).

    Raises TransferError during iteration if the epoch fails. `num_bytes` and `digest` are set at the end.
    """

    def __init__(self, join: TransferJoin, deadline_s: float, device: torch.device = CPU) -> None:
        self.join = join
        self.deadline_s = deadline_s
        self.num_bytes = 0
        self.digest = ""
        self._device = device
        self._receiving: Receiving | None = None

    def connect(self) -> None:
        """Wait until all ranks have joined. An engine that calls this first only pauses while the buckets arrive."""
        join = self.join
        receiving = Receiving(
            join.host, join.port, join.secret, join.rank, join.size, deadline_s=self.deadline_s, device=self._device
        )
        wanted = WeightsId(join.attempt, join.version)
        if receiving.weights_id != wanted:
            receiving.group.close(failed=True)
            raise TransferError(f"weight transfer {join.epoch} sends {receiving.weights_id}, expected {wanted}")
        self._receiving = receiving

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        if self._receiving is None:
            self.connect()
        assert self._receiving is not None
        with self._receiving as receiving:
            for info, raw in receiving.buckets(self._allocate):
                yield from views(info, raw)
                self.num_bytes += info.num_bytes
            self.digest = receiving.manifest().digest
            receiving.acknowledge()

    def _allocate(self, index: int, num_bytes: int) -> torch.Tensor:
        """A new buffer for each bucket: vLLM keeps tensors until their layer is complete, maybe several buckets later.

        One bucket is in use while the next one fills. A buffer is freed with the last of its tensors.
        """
        assert self._receiving is not None
        return torch.empty(num_bytes, dtype=torch.uint8, device=self._receiving.group.device)
