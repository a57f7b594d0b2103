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
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from rollart_hpc.trainers import checkpoint as common
from rollart_hpc.trainers import checksums
from rollart_hpc.trainers.megatron.critic import MegatronCritic
from rollart_hpc.trainers.megatron.updating import Trained
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
    """What is saved, and restored in place. What a checkpoint does not have keeps its first value."""

    policy: Trained
    kl: float  # its coefficient
    reference: Any = None  # a GPTModel, or none
    critic: MegatronCritic | None = None


def save(directory: Path, state: State, world: World, head: checksums.Head) -> None:
    def write() -> list[str]:
        critic_has_stepped = state.critic is not None and state.critic.has_stepped
        tensors = _tensors(state, head.has_stepped, critic_has_stepped, is_loading=False)
        tensors["extras"] = {"kl": state.kl, "has": sorted(tensors)}
        dist_checkpointing.save(tensors, str(directory), _InThisProcess("torch_dist", 1))
        names = [path.name for path in directory.glob(f"__{world.rank}_*.distcp")]
        return names + list(_OF_RANK_0) * (world.rank == 0)

    common.save(directory, world, head, write)


def load(directory: Path, state: State, world: World) -> tuple[checksums.Head, float]:
    """Also the coefficient of the KL."""
    kl = [state.kl]

    def read(head: checksums.Head) -> None:
        extras = dist_checkpointing.load_common_state_dict(str(directory)).get("extras", {})
        held = set(extras.get("has", ("model", "optimizer")))
        critic_has_stepped = "critic_optimizer" in held and state.critic is not None
        if head.has_stepped:
            _make_state(state.policy.optimizer.optimizer)
        if state.critic is not None and critic_has_stepped:
            _make_state(state.critic.own.optimizer.optimizer)
        wanted = _tensors(state, head.has_stepped, critic_has_stepped, is_loading=True)
        wanted = {name: part for name, part in wanted.items() if name in held}
        tensors = dist_checkpointing.load(wanted, str(directory))
        _restore(state.policy, tensors["model"], tensors.get("optimizer"))
        if state.reference is not None and "reference" in tensors:
            state.reference.load_state_dict(tensors["reference"])
        if state.critic is not None and "critic" in tensors:
            _restore(state.critic.own, tensors["critic"], tensors.get("critic_optimizer"))
            state.critic.has_stepped = critic_has_stepped
        kl[0] = float(extras.get("kl", state.kl))

    return common.load(directory, world, read), kl[0]


def _restore(own: Trained, model: dict[str, Any], optimizer: dict[str, Any] | None) -> None:
    own.model.module.load_state_dict(model)
    if optimizer is not None:
        own.optimizer.load_state_dict(optimizer)
        _own_steps(own.optimizer.optimizer)
    else:
        own.optimizer.optimizer.state.clear()
        own.optimizer.reload_model_params()


def _tensors(state: State, has_stepped: bool, critic_has_stepped: bool, *, is_loading: bool) -> dict[str, Any]:
    tensors = _of(state.policy, "", has_stepped, is_loading=is_loading)
    if state.reference is not None:
        tensors["reference"] = _bare(
            state.reference.sharded_state_dict(prefix="reference.", metadata=_METADATA), "reference."
        )
    if state.critic is not None:
        tensors |= _of(state.critic.own, "critic", critic_has_stepped, is_loading=is_loading)
    return tensors


def _of(own: Trained, name: str, has_stepped: bool, *, is_loading: bool) -> dict[str, Any]:
    """The policy's has no prefix. An optimizer that has never stepped has no state."""
    prefix = f"{name}." if name else ""
    model = own.model.module.sharded_state_dict(prefix=prefix, metadata=_METADATA)
    tensors: dict[str, Any] = {name or "model": _bare(model, prefix)}
    if has_stepped:
        found = own.optimizer.sharded_state_dict(model, is_loading, metadata=_METADATA)
        tensors[f"{name}_optimizer" if name else "optimizer"] = found
    return tensors


def _bare(named: dict[str, Any], prefix: str) -> dict[str, Any]:
    """With the module's own names; the prefix stays in the keys of the stored tensors."""
    return {name.removeprefix(prefix): tensor for name, tensor in named.items()}


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
