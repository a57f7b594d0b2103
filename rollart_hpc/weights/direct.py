"""Weights straight from the trainer into engines, without a relay. Owns the buckets on the way.

The source fills two buckets in turn: one travels while the next one is filled, so never more than two of them lie
beside the model. A target hands out tensors as they arrive. An epoch that breaks leaves a target with weights of two
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
from rollart_hpc.wire.messages import Message, TransferFailed, TransferJoin, TransferReady, TransferSent

log = logging.getLogger(__name__)

Named = Iterable[tuple[str, torch.Tensor]]


class BucketStream:
    """Named tensors as buckets. Iterate once; `digest` is complete afterwards."""

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
        """Of the bucket size, or more for a tensor that is larger. Memory of the CPU is used as far as it is filled."""
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
    """The trainer's side. Sends from threads of its own; `report` is called from them.

    `snapshot` in `offer` gives the tensors of exactly `weights_id`; it runs in the thread, and what it yields must not
    change until TransferSent or TransferFailed is reported.
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
            log.warning("epoch %d: %s", epoch, error)
            self._report(TransferFailed(epoch, str(error)))
            return
        thread = threading.Thread(
            target=self._send,
            args=(epoch, size, weights_id, snapshot, rendezvous),
            name=f"transfer-{epoch}",  # no daemon: torch does not survive Python's end in mid-operation
        )
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()
        self._report(TransferReady(epoch, rendezvous.host, rendezvous.port))

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
        except Exception as error:  # whatever it was, the controller must hear of it
            log.log(logging.WARNING if isinstance(error, SiteError) else logging.ERROR, "epoch %d: %s", epoch, error)
            self._report(TransferFailed(epoch, str(error)))
        else:
            collective = collective_of(sending.group)
            self._report(TransferSent(epoch, num_bytes, time.monotonic() - start_s, collective))


class DirectTarget:
    """The engine's side: iterate once for (name, tensor).

    Raises TransferError in mid-iteration if the epoch breaks. `num_bytes` and `digest` are set at the end.
    """

    def __init__(self, join: TransferJoin, deadline_s: float, device: torch.device = CPU) -> None:
        self.join = join
        self.deadline_s = deadline_s
        self.num_bytes = 0
        self.digest = ""
        self._device = device
        self._receiving: Receiving | None = None

    def connect(self) -> None:
        """Wait until all ranks are there. An engine that does this beforehand stands still for the buckets alone."""
        join = self.join
        receiving = Receiving(
            join.host, join.port, join.rank, join.size, deadline_s=self.deadline_s, device=self._device
        )
        wanted = WeightsId(join.attempt, join.version)
        if receiving.weights_id != wanted:
            receiving.group.close(failed=True)
            raise TransferError(f"epoch {join.epoch} brings {receiving.weights_id}, not {wanted}")
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
        """A new one each: vLLM keeps tensors until their layer is complete, which may be some buckets later.

        One bucket is in use while the next one fills; both go with the last tensor of theirs that is kept.
        """
        assert self._receiving is not None
        return torch.empty(num_bytes, dtype=torch.uint8, device=self._receiving.group.device)
