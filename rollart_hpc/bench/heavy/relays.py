"""Compares transfers between two relays with the bare collective, on the same bytes. Measures one rank.

    python -m rollart_hpc.bench.heavy.relays DIRECTORY TOTAL_BYTES BUCKET_BYTES PAIRS [RANK]

Two processes run it: with a RANK over gloo, without one as the ranks of an MPI world. Rank 0 has the weights, and
prints a line of JSON with the seconds of every pair. The time to form the group does not count on either side. Neither
do the first versions: from the fourth version on, a relay reuses the memory of a pruned version, as in a run.
"""

from __future__ import annotations

import json
import queue
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import torch
import xxhash

from rollart_hpc.observe.trace import Tracer
from rollart_hpc.types import WeightsId
from rollart_hpc.weights.digest import raw_bytes
from rollart_hpc.weights.forming import collective_of, form
from rollart_hpc.weights.meeting_store import MeetingStore
from rollart_hpc.weights.mpi import MpiWorld
from rollart_hpc.weights.process_groups import CPU, ProcessGroup, RankSetup
from rollart_hpc.weights.relay import Relay
from rollart_hpc.weights.store import NodeStore
from rollart_hpc.weights.transfer import open_rendezvous
from rollart_hpc.wire.messages import Adopt, Held, Message, TransferJoin, TransferOffer, TransferReady, TransferSent

HOST = "127.0.0.1"
DEADLINE_S = 120.0
FRESH_VERSIONS = 3  # two versions are kept, and the third arrives before the first is pruned
TENSOR_BYTES = 8 << 20
M = TypeVar("M", bound=Message)


class Bench:
    def __init__(self, directory: Path, total: int, bucket: int, rank: int | None) -> None:
        self.world = MpiWorld("bench", DEADLINE_S) if rank is None else None
        self.rank = self.world.rank if self.world is not None else int(rank or 0)
        self.total, self.bucket, self._directory = total, bucket, directory
        self._epoch = self._version = 0
        self._told: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.store = NodeStore(directory / "store", f"node-{self.rank}")
        self._relay = Relay(self.store, HOST, DEADLINE_S, self._told.put, Tracer(None, "bench"), self.world)
        self._buffer = torch.zeros(total, dtype=torch.uint8)

    def ours(self) -> float:
        """Seconds to transfer a new version, from the first byte of the offer until the target has verified it."""
        self._epoch += 1
        self._version += 1
        weights_id = WeightsId(1, self._version)
        if self.rank == 0:
            self._write(weights_id)
            self._relay.handle(TransferOffer(self._epoch, *weights_id, 2))
            ready = self._hear(TransferReady)
            self._publish(ready.port, ready.secret)
            return self._hear(TransferSent).seconds
        self._relay.handle(TransferJoin(self._epoch, *weights_id, 1, 2, HOST, *self._meet()))
        return self._hear(Held).seconds

    def _write(self, weights_id: WeightsId) -> None:
        """Write like a trainer on the source's node; the relay verifies it."""
        tensor = torch.full((TENSOR_BYTES // 4,), float(weights_id.version))
        self.store.write(weights_id, ((f"t{i}", tensor) for i in range(self.total // TENSOR_BYTES)), self.bucket)
        self._relay.handle(Adopt(*weights_id))
        self._hear(Held)

    def raw(self) -> float:
        """Seconds to send the same bytes, in buckets of the same size, between memory that is already allocated."""
        self._epoch += 1
        with self._group() as group:
            group.barrier()
            start_s = time.monotonic()
            for piece in self._buffer.split(self.bucket):
                group.broadcast(piece)
            group.barrier()
            return time.monotonic() - start_s

    def checksum(self) -> float:
        """CPU seconds of one checksum pass over the bytes. CPU time, so that waiting does not count."""
        start_s = time.thread_time()
        xxhash.xxh3_64_hexdigest(raw_bytes(self._buffer))
        return time.thread_time() - start_s

    def collective(self) -> str:
        self._epoch += 1
        with self._group() as group:
            group.barrier()
            return collective_of(group)

    def _group(self) -> ProcessGroup:
        if self.rank == 0:
            rendezvous = open_rendezvous(HOST)
            self._publish(rendezvous.port, rendezvous.secret)
            return form(rendezvous.open(DEADLINE_S), RankSetup(0, 2, HOST, DEADLINE_S, CPU), self.world)
        store = MeetingStore(HOST, *self._meet(), timedelta(seconds=DEADLINE_S))
        return form(store, RankSetup(1, 2, HOST, DEADLINE_S, CPU), self.world)

    def _publish(self, port: int, secret: str) -> None:
        scratch = self._directory / f"scratch-{self._epoch}"
        scratch.write_text(f"{port} {secret}")
        scratch.rename(self._directory / f"port-{self._epoch}")

    def _meet(self) -> tuple[int, str]:
        place = self._directory / f"port-{self._epoch}"
        until_s = time.monotonic() + DEADLINE_S
        while not place.exists():
            assert time.monotonic() < until_s, "the other rank did not come"
            time.sleep(0.005)
        port, secret = place.read_text().split()
        return int(port), secret

    def _hear(self, kind: type[M]) -> M:
        message = self._told.get(timeout=DEADLINE_S)
        assert isinstance(message, kind), message
        return message


def main(directory: str, total: str, bucket: str, pairs: str, rank: str | None = None) -> None:
    bench = Bench(Path(directory), int(total), int(bucket), None if rank is None else int(rank))
    collective = bench.collective()
    bench.raw()
    for _ in range(FRESH_VERSIONS):
        bench.ours()
    raw: list[float] = []
    ours: list[float] = []
    checksum: list[float] = []
    for number in range(int(pairs)):
        for side in ("raw", "ours") if number % 2 else ("ours", "raw"):
            (raw if side == "raw" else ours).append(bench.raw() if side == "raw" else bench.ours())
        if bench.rank == 0:
            checksum.append(bench.checksum())
    if bench.rank == 0:
        print(json.dumps({"collective": collective, "raw_s": raw, "ours_s": ours, "checksum_s": checksum}), flush=True)
    bench.store.remove()
    if bench.world is not None:
        bench.world.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
