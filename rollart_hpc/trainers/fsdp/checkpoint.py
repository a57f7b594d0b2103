"""The part of a checkpoint that the trainer `fsdp` writes. Owns its files; knows nothing of steps or of other parts.

    DIRECTORY/
      __<rank>_<i>.distcp, .metadata     torch.distributed.checkpoint: model, optimizer
      files_<rank>.json, trainer.json    checksums, see `checksums`

A critic, a reference that is renewed and an adapted KL coefficient are saved beside the policy. What a checkpoint does
not have, because the algorithm has changed since, keeps its first value. It can be loaded with a different number of
ranks. torch's planners exchange pickled plans over the ranks' own group.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed
from transformers import PreTrainedModel

from rollart_hpc.trainers import checkpoint as common
from rollart_hpc.trainers import checksums
from rollart_hpc.trainers.fsdp.critic import FsdpCritic
from rollart_hpc.trainers.fsdp.loading import named_tensors
from rollart_hpc.trainers.fsdp.model import saved_tensors
from rollart_hpc.trainers.world import World

_METADATA = ".metadata"


class State(NamedTuple):
    """The state that is saved, and restored in place."""

    model: PreTrainedModel
    optimizer: torch.optim.Optimizer
    kl: torch.Tensor | None = None  # coefficient that is adapted; changed in place
    reference: PreTrainedModel | None = None
    critic: FsdpCritic | None = None


def save(directory: Path, state: State, world: World, *, version: int, digest: str) -> None:
    has_stepped = bool(state.optimizer.state)
    critic_has_stepped = state.critic is not None and bool(state.critic.optimizer.state)
    tensors = _tensors(state, has_stepped, critic_has_stepped=critic_has_stepped)

    def write() -> list[str]:
        save_distributed(tensors, checkpoint_id=directory)
        names = [path.name for path in directory.glob(f"__{world.rank}_*.distcp")]
        return names + [_METADATA] * (world.rank == 0)

    head = checksums.Head(version=version, digest=digest, ranks=world.size, has_stepped=has_stepped)
    common.save(directory, world, head, write, common.size_of(tensors))


def load(directory: Path, state: State, world: World) -> checksums.Head:
    def read(head: checksums.Head) -> None:
        held = {name.partition(".")[0] for name in FileSystemReader(directory).read_metadata().state_dict_metadata}
        state.optimizer.state.clear()
        if state.critic is not None:
            state.critic.optimizer.state.clear()
        tensors = _tensors(state, head.has_stepped, critic_has_stepped="critic_optimizer" in held)
        tensors = {name: part for name, part in tensors.items() if name in held}
        load_distributed(tensors, checkpoint_id=directory)  # in place
        if "optimizer" in tensors:
            set_optimizer_state_dict(state.model, state.optimizer, tensors["optimizer"])
        if state.critic is not None and "critic_optimizer" in tensors:
            set_optimizer_state_dict(state.critic.model, state.critic.optimizer, tensors["critic_optimizer"])

    return common.load(directory, world, read)


def _tensors(state: State, has_stepped: bool, *, critic_has_stepped: bool) -> dict[str, Any]:
    """An optimizer that has never stepped has no state, and asking torch for it would create one."""
    tensors: dict[str, Any] = {"model": _of(saved_tensors(state.model))}
    if state.kl is not None:
        tensors["kl"] = state.kl
    if has_stepped:
        tensors["optimizer"] = get_optimizer_state_dict(state.model, state.optimizer)
    if state.reference is not None:
        tensors["reference"] = _of(named_tensors(state.reference))
    if state.critic is not None:
        tensors["critic"] = _of(named_tensors(state.critic.model))
        if critic_has_stepped:
            tensors["critic_optimizer"] = get_optimizer_state_dict(state.critic.model, state.critic.optimizer)
    return tensors


def _of(named: Iterator[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach() for name, tensor in named}
