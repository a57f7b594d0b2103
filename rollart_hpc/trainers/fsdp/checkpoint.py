"""The part of a checkpoint that the trainer `fsdp` writes. Owns its files; knows nothing of steps or of other parts.

    DIRECTORY/
      __<rank>_<i>.distcp, .metadata     torch.distributed.checkpoint: model, optimizer
      files_<rank>.json, trainer.json    checksums, see `checksums`

It can be loaded with a different number of ranks. torch's planners exchange pickled plans over the ranks' own group.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed
from transformers import PreTrainedModel

from rollart_hpc.trainers import checkpoint as common
from rollart_hpc.trainers import checksums
from rollart_hpc.trainers.fsdp.model import saved_tensors
from rollart_hpc.trainers.world import World

_METADATA = ".metadata"


class State(NamedTuple):
    """The state that is saved, and restored in place."""

    model: PreTrainedModel
    optimizer: torch.optim.Optimizer


def save(directory: Path, state: State, world: World, *, version: int, digest: str) -> None:
    has_stepped = bool(state.optimizer.state)
    tensors = _tensors(state, has_stepped)

    def write() -> list[str]:
        save_distributed(tensors, checkpoint_id=directory)
        names = [path.name for path in directory.glob(f"__{world.rank}_*.distcp")]
        return names + [_METADATA] * (world.rank == 0)

    head = checksums.Head(version=version, digest=digest, ranks=world.size, has_stepped=has_stepped)
    common.save(directory, world, head, write, common.size_of(tensors))


def load(directory: Path, state: State, world: World) -> checksums.Head:
    def read(head: checksums.Head) -> None:
        state.optimizer.state.clear()
        tensors = _tensors(state, head.has_stepped)  # the model's tensors are loaded in place
        load_distributed(tensors, checkpoint_id=directory)
        if head.has_stepped:
            set_optimizer_state_dict(state.model, state.optimizer, tensors["optimizer"])

    return common.load(directory, world, read)


def _tensors(state: State, has_stepped: bool) -> dict[str, Any]:
    """An optimizer that has never stepped has no state, and asking torch for it would create one."""
    tensors: dict[str, Any] = {"model": {name: tensor.detach() for name, tensor in saved_tensors(state.model)}}
    if has_stepped:
        tensors["optimizer"] = get_optimizer_state_dict(state.model, state.optimizer)
    return tensors
