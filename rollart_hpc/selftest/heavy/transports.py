"""Checks of weight transports between two processes: the same digest arrives, and how fast."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch

from rollart_hpc.files import read_json, write_json
from rollart_hpc.selftest.checks import Here
from rollart_hpc.selftest.heavy.ranks import LIMIT_S, run_ranks
from rollart_hpc.trainers.world import World
from rollart_hpc.types import WeightsId
from rollart_hpc.weights.digest import digest
from rollart_hpc.weights.direct import DirectSource, DirectTarget
from rollart_hpc.weights.store import MANIFEST, NodeStore, new_bucket
from rollart_hpc.weights.transfer import Receiving, Rendezvous, Sending, open_rendezvous
from rollart_hpc.wire.messages import Message, TransferJoin, TransferReady, TransferSent

ID = WeightsId(1, 1)
BUCKET = 32 << 20
MEGABYTES = {"cpu": 128, "cuda": 4096}


def staged(here: Here) -> dict[str, Any]:
    def part(world: World) -> dict[str, Any]:
        return _staged(world, here.scratch)

    return _told(run_ranks(2, "cpu", here.scratch, part))


def direct(here: Here) -> dict[str, Any]:
    def part(world: World) -> dict[str, Any]:
        return _send(world, here.scratch) if world.rank == 0 else _receive(world, here.scratch)

    return _told(run_ranks(2, here.device, here.scratch, part))


def _told(found: list[dict[str, Any]]) -> dict[str, Any]:
    sent, received = found
    assert sent["digest"] == received["digest"], f"sent {sent['digest']}, received {received['digest']}"
    return {"bytes": sent["bytes"], "gb_per_s": sent["bytes"] / received["seconds"] / 1e9}


def _tensors(device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    for number in range(MEGABYTES[device.type] // 8):
        yield f"w{number}", torch.full((4 << 20,), float(number), dtype=torch.bfloat16, device=device)


def _staged(world: World, scratch: Path) -> dict[str, Any]:
    store, place = NodeStore(scratch / "store", f"node-{world.rank}"), scratch / "place"
    if world.rank == 0:
        manifest = store.write(ID, _tensors(torch.device("cpu")), BUCKET)
        rendezvous = open_rendezvous("127.0.0.1")
        write_json(place, [rendezvous.port, rendezvous.secret])
        return {"bytes": _send_stored(store, rendezvous), "digest": manifest.digest}
    port, secret = _wait_for(place)
    with Receiving("127.0.0.1", port, secret, 1, 2, deadline_s=60.0) as receiving, store.draft(ID) as draft:
        began_s = time.monotonic()
        for _ in receiving.buckets(lambda index, size: new_bucket(draft, index, size)):
            pass
        draft.commit(MANIFEST, receiving.manifest().encode())
        receiving.acknowledge()
        seconds = time.monotonic() - began_s
    return {"digest": digest(store.open(ID)), "seconds": seconds}


def _send_stored(store: NodeStore, rendezvous: Rendezvous) -> int:
    stored = store.open(ID)
    manifest = stored.manifest
    return Sending(rendezvous, 2, 60.0).send(ID, stored.buckets(), lambda: manifest.digest, manifest.buckets)


def _send(world: World, scratch: Path) -> dict[str, Any]:
    reports: queue.Queue[Message] = queue.Queue()
    named = dict(_tensors(world.device))
    source = DirectSource("127.0.0.1", bucket_bytes=BUCKET, deadline_s=60.0, report=reports.put, device=world.device)
    source.offer(1, 2, ID, named.items)
    ready = reports.get(timeout=LIMIT_S)
    assert isinstance(ready, TransferReady), ready
    join = TransferJoin(1, *ID, 1, 2, ready.host, ready.port, ready.secret)
    write_json(scratch / "join", msgspec.to_builtins(join))
    sent = reports.get(timeout=LIMIT_S)
    source.join()
    assert isinstance(sent, TransferSent), sent
    return {"bytes": sent.num_bytes, "digest": digest(named.items())}


def _receive(world: World, scratch: Path) -> dict[str, Any]:
    target = DirectTarget(msgspec.convert(_wait_for(scratch / "join"), TransferJoin), 60.0, world.device)
    target.connect()
    began_s = time.monotonic()
    for _ in target:
        pass
    return {"digest": target.digest, "seconds": time.monotonic() - began_s}


def _wait_for(path: Path) -> Any:
    deadline_s = time.monotonic() + LIMIT_S
    while (found := read_json(path)) is None:
        assert time.monotonic() < deadline_s, "the other process did not begin"
        time.sleep(0.01)
    return found
