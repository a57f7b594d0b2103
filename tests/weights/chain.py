"""Many targets of one transfer as threads of one process, and the bytes that this process sent over TCP."""

from __future__ import annotations

import os
import socket
import stat
import struct
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import NamedTuple
from unittest import mock

import torch

from rollart_hpc.types import WeightsId
from rollart_hpc.weights.direct import BucketStream
from rollart_hpc.weights.process_groups import TorchProcessGroup
from rollart_hpc.weights.transfer import Receiving, Sending, open_rendezvous
from tests.processes import server

ID = WeightsId(1, 7)
PATIENCE_S = 120.0
_ACKED_AT = 120  # of `tcpi_bytes_acked` in Linux's struct tcp_info


class Traffic(NamedTuple):
    model: int  # bytes of the weights
    root: int  # bytes that left the source over TCP
    digests: list[str]  # what each target received


def tcp_bytes() -> dict[int, int]:
    """Bytes that the other end acknowledged, of each TCP socket of this process."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            info = os.fstat(int(name))
            if stat.S_ISSOCK(info.st_mode):
                with socket.socket(fileno=os.dup(int(name))) as one:
                    raw = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                found[info.st_ino] = struct.unpack_from("Q", raw, _ACKED_AT)[0]
        except OSError:  # closed meanwhile, or no TCP socket
            continue
    return found


def receive(rank: int, size: int, port: int, secret: str) -> str:
    with Receiving("127.0.0.1", port, secret, rank, size, deadline_s=PATIENCE_S) as receiving:
        for _ in receiving.buckets(lambda _, num_bytes: torch.empty(num_bytes, dtype=torch.uint8)):
            pass
        receiving.acknowledge()
    return receiving.manifest().digest


def targets(pipe: Connection, count: int, port: int, secret: str) -> None:
    torch.set_num_threads(1)
    with ThreadPoolExecutor(count) as threads:
        works = [threads.submit(receive, rank, count + 1, port, secret) for rank in range(1, count + 1)]
        pipe.send([work.result() for work in works])


def measure(count: int, num_megabytes: int, bucket_megabytes: int = 8) -> Traffic:
    """One transfer of that many MiB of weights to `count` targets."""
    named = [(f"w{i}", torch.full((1 << 18,), float(i))) for i in range(num_megabytes)]
    stream = BucketStream(named, bucket_megabytes << 20)
    rendezvous, (ours, theirs) = open_rendezvous("127.0.0.1"), server.Pipe()
    process = server.Process(target=targets, args=(theirs, count, rendezvous.port, rendezvous.secret))
    process.start()
    before, barrier = tcp_bytes(), TorchProcessGroup.barrier
    seen: list[int] = []

    def count_after(group: TorchProcessGroup) -> None:
        barrier(group)
        seen.append(sum(now - before.get(one, 0) for one, now in tcp_bytes().items()))

    with mock.patch.object(TorchProcessGroup, "barrier", count_after):
        model = Sending(rendezvous, count + 1, PATIENCE_S).send(ID, stream, stream.digest.hexdigest)
    digests: list[str] = ours.recv() if ours.poll(PATIENCE_S) else []
    process.join()
    assert set(digests) <= {stream.digest.hexdigest()}
    return Traffic(model, *seen, digests)
