"""A sharded transformers causal LM. Owns FSDP2 and the forward to scores of tokens; knows no loss.

Every rank's shard is float32; a single rank has nothing to shard and keeps the plain model. With dtype bfloat16, FSDP
(used even for one rank) computes and exports in bfloat16, while gradients are reduced and the optimizer runs in
float32. With activation checkpointing, a block keeps only its input and runs again in backward.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch.distributed._composable.checkpoint_activation import checkpoint as recompute
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from transformers import PreTrainedModel

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.trainers.fsdp import lora
from rollart_hpc.trainers.fsdp.backend import FsdpOptions, options_of
from rollart_hpc.trainers.fsdp.loading import blank, fill, named_tensors
from rollart_hpc.trainers.fsdp.logprobs import check_head, head_of, scores_of
from rollart_hpc.trainers.packing import MicroBatch, pack
from rollart_hpc.trainers.world import World


def load_trained(directory: Path, world: World, config: RunConfig) -> PreTrainedModel:
    """Loads the model to train."""
    model = blank(directory)
    if config.trainer.lora.rank:
        lora.add_adapters(model, config.trainer.lora, config.seed)
    if config.trainer.activation_checkpointing:
        for layer in _layers(model):
            recompute(layer)
    return _placed(model, directory, world, config)


def load_reference(directory: Path, world: World, config: RunConfig) -> PreTrainedModel:
    return _placed(blank(directory).requires_grad_(False), directory, world, config)


def load_critic(directory: Path, world: World, config: RunConfig) -> PreTrainedModel:
    """The model with one output per token, which begins at 0. All of its weights are trained."""
    model = blank(directory)
    head: Any = torch.nn.Linear(model.get_output_embeddings().in_features, 1, bias=False)
    torch.nn.init.zeros_(head.weight)
    model.config.tie_word_embeddings = False
    model.set_output_embeddings(head)
    if config.trainer.activation_checkpointing:
        for layer in _layers(model):
            recompute(layer)
    (name,) = (name for name, parameter in model.named_parameters() if parameter is head.weight)
    _spread(model, directory, world, config, own=frozenset({name}))
    model.value = MethodType(_value, model)
    register_fsdp_forward_method(model, "value")
    return model


def _value(model: PreTrainedModel, micro: MicroBatch) -> torch.Tensor:
    """[sampled] in float32: at the place before each sampled token. One row, to be ignored, if there is none."""
    hidden = model.base_model(**_inputs(micro))[0][0]
    keep = micro.keep if micro.num_sampled else micro.ids[0, :1] * 0
    values: torch.Tensor = model.get_output_embeddings()(hidden[keep]).float().squeeze(-1)
    return values


def _placed(model: PreTrainedModel, directory: Path, world: World, config: RunConfig) -> PreTrainedModel:
    """Puts the model on the ranks' devices and runs one forward: an untrainable model fails before anything starts."""
    _spread(model, directory, world, config)
    _make_scorable(model)
    _try_out(model, pack([], [], world.device))
    return model


def _spread(
    model: PreTrainedModel, directory: Path, world: World, config: RunConfig, own: frozenset[str] = frozenset()
) -> None:
    """`own`: names of weights that are not in the directory."""
    dtype = getattr(torch, config.trainer.dtype)
    options = options_of(config)
    if world.size > 1 or dtype != torch.float32 or options.cpu_offload:
        _shard(model, world, dtype, options)
    fill(model, directory, torch.device("cpu") if options.cpu_offload else world.device, own)
    if not is_sharded(model):
        model.to(world.device)


def _make_scorable(model: PreTrainedModel) -> None:
    model.score = MethodType(_score, model)
    register_fsdp_forward_method(model, "score")


def _try_out(model: PreTrainedModel, micro: MicroBatch) -> None:
    with torch.no_grad():
        scores = sampled_scores(model, micro, 1.0)
        logits = model(**_inputs(micro)).logits[0, :1]
        check_head(model, scores, logits, micro.ids[0, :1])
    reshard(model)


def is_sharded(model: PreTrainedModel) -> bool:
    return isinstance(model, FSDPModule)


def reshard(model: PreTrainedModel) -> None:
    """Call after forwards without a backward: FSDP keeps the root's weights gathered until then."""
    if is_sharded(model):
        model.reshard()


def _shard(model: PreTrainedModel, world: World, dtype: torch.dtype, options: FsdpOptions) -> None:
    policy = MixedPrecisionPolicy()
    if dtype != torch.float32:
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    offload = CPUOffloadPolicy(pin_memory=world.device.type == "cuda") if options.cpu_offload else OffloadPolicy()
    mesh = _mesh(world, options.shard_ranks or world.size)
    for module in [*_layers(model), model]:
        fully_shard(module, mesh=mesh, mp_policy=policy, offload_policy=offload)
    for module in model.modules():
        if isinstance(module, FSDPModule):  # losses are sums: gradients add up over ranks
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _mesh(world: World, per_copy: int) -> DeviceMesh:
    """One row of ranks, or a row for each copy of the weights."""
    if per_copy == world.size:
        return init_device_mesh(world.device.type, (world.size,))
    shape = (world.size // per_copy, per_copy)
    return init_device_mesh(world.device.type, shape, mesh_dim_names=("copy", "shard"))


def _layers(model: PreTrainedModel) -> list[torch.nn.Module]:
    """The repeated blocks. Embeddings and head stay in the root's shard, where tied ones are one parameter."""
    names = set(model._no_split_modules or ())
    return [module for module in model.modules() if type(module).__name__ in names]


def sampled_scores(
    model: PreTrainedModel, micro: MicroBatch, temperature: float, *, with_entropy: bool = False
) -> torch.Tensor:
    """Log-prob, and entropy if wanted, of each sampled token: [sampled, 1 or 2].

    An empty micro-batch has one row, which must be ignored.
    """
    scores: torch.Tensor = model.score(micro, temperature, with_entropy)
    return scores


def _score(model: PreTrainedModel, micro: MicroBatch, temperature: float, with_entropy: bool) -> torch.Tensor:
    """A method of the model, so that FSDP gathers the root's weights for it as for `forward`."""
    hidden = model.base_model(**_inputs(micro))[0][0]
    keep, targets = (micro.keep, micro.targets) if micro.num_sampled else (micro.ids[0, :1] * 0, micro.ids[0, :1])
    return scores_of(head_of(model), hidden[keep], targets, temperature, with_entropy=with_entropy)


def _inputs(micro: MicroBatch) -> dict[str, Any]:
    return {
        "input_ids": micro.ids,
        "position_ids": micro.positions,
        "use_cache": False,
        "sample_lengths": micro.lengths,
    }


def full_tensors(model: PreTrainedModel, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    """Gathers one tensor at a time. It may share memory with the live weights: copy it if you keep it."""
    return lora.merged(model, named_tensors(model), dtype)


def saved_tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a checkpoint: the adapters if there are any, else all."""
    has_adapters = bool(lora.adapted(model))
    return ((name, tensor) for name, tensor in named_tensors(model) if not has_adapters or lora.is_adapter(name))
