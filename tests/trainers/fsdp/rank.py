"""One rank of a trainer, as the main function of a process of its own.

The job says what to do: `steps` to train with a chunk per entry of `chunks`, checkpoints to `load` first and `save`
last, a rank that `dies` in mid-step. The rank writes what it found to `out`, with its number as suffix.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch

from rollart_hpc.errors import SiteError
from rollart_hpc.trainers.fsdp.trainer import FsdpTrainer
from rollart_hpc.trainers.world import open_world, rank_errors
from tests.trainers.plain import make_config, make_groups


def train(job: dict[str, Any], rank: int) -> dict[str, Any]:
    torch.set_num_threads(1)
    world = open_world(rank, job["ranks"], "cpu", Path(job["rendezvous"]))
    said = [bytes(frame).decode() for frame in world.broadcast([b"hello", b"", b"there"] if rank == 0 else None)]
    trainer = FsdpTrainer(make_config(**job.get("config", {})), Path(job["model"]), world)
    if "load" in job:
        trainer.load(Path(job["load"]))
    metrics = []
    for seed in range(trainer.version, trainer.version + job.get("steps", 0)):
        groups = make_groups(seed, num_groups=5)
        for size in job["chunks"]:
            trainer.accumulate(groups[:size])
            del groups[:size]
        if job.get("dies") == rank:
            os._exit(9)
        metrics.append(trainer.step().metrics)
    if "save" in job:
        trainer.save(Path(job["save"]))
    named = {name: tensor.clone() for name, tensor in trainer.export()}
    torch.save(named, f"{job['out']}.{rank}.pt")
    world.close()
    return {"said": said, "version": trainer.version, "digest": trainer.digest, "metrics": metrics}


def main(job: dict[str, Any], rank: int) -> None:
    try:
        with rank_errors():  # as the role of a trainer does
            result = train(job, rank)
    except SiteError as error:
        result = {"error": str(error)}
    Path(f"{job['out']}.{rank}.json").write_text(json.dumps(result))
