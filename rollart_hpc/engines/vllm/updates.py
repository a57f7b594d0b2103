"""The dictionary that tells a vLLM worker where its new weights are. Owns its format; imports nothing of vLLM."""

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
INCOMPLETE = "are missing from the weights"  # in a worker's error about missing tensors


def from_store(directory: Path, weights_id: WeightsId) -> Update:
    """One update for all workers: a version in shared memory that the engine's process has already verified."""
    return {"attempt": weights_id.attempt, "version": weights_id.version, "directory": str(directory)}


def from_collective(target: DirectTarget, num_ranks: int) -> list[Update]:
    """One update per worker: each gets its own rank, starting with the engine's first rank."""
    ranks = range(target.join.rank, target.join.rank + num_ranks)
    joins = (msgspec.structs.replace(target.join, rank=rank) for rank in ranks)
    return [{"join": msgspec.to_builtins(join), "deadline_s": target.deadline_s} for join in joins]


def open_update(update: Update, device: torch.device) -> StoredWeights | DirectTarget:
    """Called in a worker: opens the weights that the update names."""
    if "join" in update:
        return DirectTarget(msgspec.convert(update["join"], TransferJoin), update["deadline_s"], device)
    stored = StoredWeights(Path(update["directory"]), WeightsId(update["attempt"], update["version"]))
    stored.trust()
    return stored
