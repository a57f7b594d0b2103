"""The part of a checkpoint that the trainer `megatron` writes. Owns its files; knows nothing of steps.

    DIRECTORY/
      __<rank>_<i>.distcp, .metadata, common.pt, metadata.json    megatron's dist_checkpointing: model, optimizer
      files_<rank>.json, trainer.json                             checksums, see `checksums`

It can be loaded with different parallel sizes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    TorchDistSaveShardedStrategy,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import MegatronOptimizer
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from rollart_hpc.trainers import checkpoint as common
from rollart_hpc.trainers import checksums
from rollart_hpc.trainers.world import World

_OF_RANK_0 = (".metadata", "common.pt", "metadata.json")
_METADATA = {"distrib_optim_sharding_type": "fully_reshardable"}


class _InThisProcess(TorchDistSaveShardedStrategy):  # type: ignore[misc]
    """megatron's format, written with torch's writer.

    megatron's own writer starts a server and a process per file, which would outlive a killed rank.
    """

    def save(self, sharded_state_dict: dict[str, Any], checkpoint_dir: str | Path) -> None:
        by_key, *_ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, self.keep_only_main_replica)
        planner = MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False)
        writer = FileSystemWriter(checkpoint_dir, thread_count=1)
        save_distributed(mcore_to_pyt_state_dict(by_key, False), storage_writer=writer, planner=planner)


class State(NamedTuple):
    model: DistributedDataParallel
    optimizer: MegatronOptimizer


def save(directory: Path, state: State, world: World, head: checksums.Head) -> None:
    def write() -> list[str]:
        tensors = _tensors(state, head.has_stepped, is_loading=False)
        dist_checkpointing.save(tensors, str(directory), _InThisProcess("torch_dist", 1))
        names = [path.name for path in directory.glob(f"__{world.rank}_*.distcp")]
        return names + list(_OF_RANK_0) * (world.rank == 0)

    common.save(directory, world, head, write)


def load(directory: Path, state: State, world: World) -> checksums.Head:
    def read(head: checksums.Head) -> None:
        if head.has_stepped:
            _make_state(state.optimizer.optimizer)
        tensors = dist_checkpointing.load(_tensors(state, head.has_stepped, is_loading=True), str(directory))
        state.model.module.load_state_dict(tensors["model"])
        if head.has_stepped:
            state.optimizer.load_state_dict(tensors["optimizer"])
            _own_steps(state.optimizer.optimizer)
        else:
            state.optimizer.optimizer.state.clear()
            state.optimizer.reload_model_params()

    return common.load(directory, world, read)


def _tensors(state: State, has_stepped: bool, *, is_loading: bool) -> dict[str, Any]:
    """An optimizer that has never stepped has no state."""
    model = state.model.module.sharded_state_dict(metadata=_METADATA)
    tensors: dict[str, Any] = {"model": model}
    if has_stepped:
        tensors["optimizer"] = state.optimizer.sharded_state_dict(model, is_loading, metadata=_METADATA)
    return tensors


def _make_state(optimizer: torch.optim.Optimizer) -> None:
    """torch's AdamW (used without Transformer Engine) has no state before its first step, but loading needs it."""
    if not isinstance(optimizer, torch.optim.AdamW):
        return
    for parameters in optimizer.param_groups:
        for parameter in parameters["params"]:
            if not optimizer.state[parameter]:
                moments = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                optimizer.state[parameter] = {"step": torch.zeros(()), **moments}


def _own_steps(optimizer: torch.optim.Optimizer) -> None:
    """megatron gives all parameters the same step counter, which each of them would increment: copy it."""
    for state in optimizer.state.values():
        if isinstance(state.get("step"), torch.Tensor):
            state["step"] = state["step"].clone()
