"""What every rank of the MPI world of test_mpi does: epochs one after the other, each told in a line of JSON.

    python world.py DIRECTORY

Rank 0 is the source. Rendezvous go through files of the directory.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from rollart_hpc.errors import RollartError
from rollart_hpc.types import WeightsId
from rollart_hpc.weights.direct import BucketStream
from rollart_hpc.weights.forming import collective_of
from rollart_hpc.weights.mpi import MpiWorld
from rollart_hpc.weights.store import views
from rollart_hpc.weights.transfer import Receiving, Sending, open_rendezvous

PATIENCE_S = 60.0
DEADLINE_S = 8.0
BUCKET = 64 << 10


def tensors(epoch: int) -> list[tuple[str, torch.Tensor]]:
    return [(f"t{i}", torch.full((10_000,), float(10 * epoch + i))) for i in range(6)]


class Rank:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.world = MpiWorld("test", PATIENCE_S)
        self.rank = self.world.rank

    def epoch(self, number: int, members: list[int], spoil: str = "") -> None:
        """`spoil`: what rank 1 does to it."""
        if self.rank in members:
            began_s, outcome, collective = time.monotonic(), "good", ""
            try:
                collective = self._send(number, members) if self.rank == 0 else self._receive(number, members, spoil)
            except RollartError as error:
                outcome = f"{type(error).__name__}: {error}"
            self.tell(epoch=number, outcome=outcome, collective=collective, seconds=time.monotonic() - began_s)

    def tell(self, **what: object) -> None:
        with open(self.directory / f"rank-{self.rank}.jsonl", "a") as file:
            file.write(json.dumps(what) + "\n")

    def _send(self, number: int, members: list[int]) -> str:
        rendezvous = open_rendezvous("127.0.0.1")
        scratch = self.directory / f"scratch-{number}"
        scratch.write_text(f"{rendezvous.port} {rendezvous.secret}")
        scratch.rename(self.directory / f"port-{number}")
        sending = Sending(rendezvous, len(members), DEADLINE_S, world=self.world)
        stream = BucketStream(tensors(number), BUCKET)
        sending.send(WeightsId(1, number), stream, stream.digest.hexdigest)
        return collective_of(sending.group)

    def _receive(self, number: int, members: list[int], spoil: str) -> str:
        port = self.directory / f"port-{number}"
        until_s = time.monotonic() + PATIENCE_S
        while not port.exists():
            assert time.monotonic() < until_s
            time.sleep(0.01)
        rank = members.index(self.rank)
        number_of_port, secret = port.read_text().split()
        with Receiving("127.0.0.1", int(number_of_port), secret, rank, len(members), deadline_s=DEADLINE_S,
                       world=self.world) as receiving:  # fmt: skip
            found = {}
            for info, raw in receiving.buckets(lambda _, size: torch.empty(size, dtype=torch.uint8)):
                if spoil and self.rank == 1:
                    self._spoil(spoil)
                found.update({name: tensor.clone() for name, tensor in views(info, raw)})
            receiving.acknowledge()
            assert all(torch.equal(found[name], tensor) for name, tensor in tensors(number))
            return collective_of(receiving.group)

    def _spoil(self, how: str) -> None:
        if how == "raise":
            raise RollartError("no room here")
        self.tell(pid=os.getpid())
        os.kill(os.getpid(), signal.SIGSTOP)


def main() -> None:
    rank = Rank(Path(sys.argv[1]))
    everyone = list(range(rank.world.size))
    rank.epoch(1, everyone)
    rank.epoch(2, everyone)
    rank.epoch(3, [0, 2])
    rank.epoch(4, everyone, spoil=sys.argv[2])
    rank.epoch(5, everyone if sys.argv[2] == "raise" else [0, 2])
    rank.world.close()


if __name__ == "__main__":
    main()
