"""What a step gathers of its weights, as the main function of a rank: counted where torch gathers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from rollart_hpc.trainers.fsdp.trainer import FsdpTrainer
from rollart_hpc.trainers.publish import Staged
from rollart_hpc.trainers.world import open_world
from rollart_hpc.types import WeightsId
from rollart_hpc.weights.store import NodeStore
from tests.trainers.plain import make_config, make_groups


def main(job: dict[str, Any], rank: int) -> None:
    torch.set_num_threads(1)
    world = open_world(rank, job["ranks"], "cpu", Path(job["rendezvous"]))
    trainer = FsdpTrainer(make_config(trainer__dtype="bfloat16"), Path(job["model"]), world)
    publisher = Staged(NodeStore(Path(job["store"]), "node"), 1 << 20)
    trainer.accumulate(make_groups(1))
    gathered: list[int] = []
    gather = DTensor.full_tensor

    def counted(tensor: DTensor, **how: Any) -> torch.Tensor:
        full = gather(tensor, **how)
        if full.ndim:  # not a norm
            gathered.append(full.nbytes)
        return full

    DTensor.full_tensor = counted  # type: ignore[method-assign,assignment]
    result = trainer.step(lambda named: publisher.publish(WeightsId(1, 1), named).digest)
    DTensor.full_tensor = gather  # type: ignore[method-assign]
    parameters = list(trainer._model.parameters())
    found = {
        "tensors": len(parameters),
        "numbers": sum(parameter.numel() for parameter in parameters),
        "gathered": len(gathered),
        "bytes": sum(gathered),
        "digest": result.digest,
    }
    Path(f"{job['out']}.{rank}.json").write_text(json.dumps(found))
    world.close()
