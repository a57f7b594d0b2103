"""What vLLM's workers are told of new weights, one dictionary for each. Owns its form; imports nothing of vLLM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch

from rollart_hpc.types import WeightsId
from rollart_hpc.weights.direct import DirectTarget
from rollart_hpc.weights.store import StoredWeights
from rollart_hpc.wire.messages import TransferJoin

Update = dict[str, Any]
INCOMPLETE = "did not come with the weights"  # what a worker says of tensors that it lacks


def from_store(directory: Path, weights_id: WeightsId) -> Update:
    """The same for all: a version in shared memory, which the engine's process has checked already."""
    return {"attempt": weights_id.attempt, "version": weights_id.version, "directory": str(directory)}


def from_collective(target: DirectTarget, num_ranks: int) -> list[Update]:
    """Each worker gets a rank of its own, from the engine's first one on."""
    ranks = range(target.join.rank, target.join.rank + num_ranks)
    joins = (msgspec.structs.replace(target.join, rank=rank) for rank in ranks)
    return [{"join": msgspec.to_builtins(join), "deadline_s": target.deadline_s} for join in joins]


def open_update(update: Update, device: torch.device) -> StoredWeights | DirectTarget:
    """In a worker: the weights that it is told of."""
    if "join" in update:
        return DirectTarget(msgspec.convert(update["join"], TransferJoin), update["deadline_s"], device)
    stored = StoredWeights(Path(update["directory"]), WeightsId(update["attempt"], update["version"]))
    stored.trust()
    return stored
