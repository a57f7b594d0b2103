"""Checks of GPUs and of the links between them. Never run: there was no GPU."""

from __future__ import annotations

import subprocess
import time
from typing import Any

import torch
import torch.distributed as dist

from rollart_hpc.selftest.checks import Here
from rollart_hpc.selftest.heavy.ranks import run_ranks
from rollart_hpc.trainers.world import World

NUM_BYTES = 256 << 20
ROUNDS = 5


def devices(here: Here) -> dict[str, Any]:
    assert torch.cuda.is_available(), f"nvidia-smi shows {here.gpus} GPUs, but torch can't use one: is it a CPU build?"
    count = torch.cuda.device_count()
    assert count == here.gpus, f"nvidia-smi shows {here.gpus} GPUs, torch {count}: see CUDA_VISIBLE_DEVICES"
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    topology = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=False, timeout=60)
    total = float(torch.ones(1 << 20, device="cuda").sum())
    assert total == 1 << 20, f"a sum on the GPU is {total:g}"
    return {
        "gpus": [torch.cuda.get_device_name(number) for number in range(count)],
        "memory_gb": [round(torch.cuda.get_device_properties(n).total_memory / 2**30, 1) for n in range(count)],
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "without_peer_access": [f"{a}-{b}" for a, b in pairs if not torch.cuda.can_device_access_peer(a, b)],
        "topology": topology.stdout.splitlines(),
    }


def nccl(here: Here) -> dict[str, Any]:
    found = run_ranks(here.gpus, "cuda", here.scratch, _bandwidth)
    assert all(rank["right"] for rank in found), "an all-reduce gave wrong sums"
    return {name: min(rank[name] for rank in found) for name in ("all_reduce_gb_per_s", "ring_gb_per_s")}


def _bandwidth(world: World) -> dict[str, Any]:
    """`all_reduce`: bus bandwidth, as NCCL's own tests count it. `ring`: every rank sends to the next."""
    data = torch.ones(NUM_BYTES // 4, device=world.device)
    other = torch.empty_like(data)
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size

    def ring() -> None:
        works = [dist.P2POp(dist.isend, data, after), dist.P2POp(dist.irecv, other, before)]
        for work in dist.batch_isend_irecv(works):
            work.wait()

    dist.all_reduce(data)
    right = bool((data == world.size).all())
    reduce_s, ring_s = _seconds(lambda: dist.all_reduce(data)), _seconds(ring)
    share = 2 * (world.size - 1) / world.size
    return {
        "right": right,
        "all_reduce_gb_per_s": share * NUM_BYTES / reduce_s / 1e9,
        "ring_gb_per_s": NUM_BYTES / ring_s / 1e9,
    }


def _seconds(work: Any) -> float:
    work()
    torch.cuda.synchronize()
    began_s = time.monotonic()
    for _ in range(ROUNDS):
        work()
    torch.cuda.synchronize()
    return (time.monotonic() - began_s) / ROUNDS
