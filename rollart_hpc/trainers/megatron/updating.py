"""From summed gradients to new weights of one megatron model: its replicas, its optimizer, an update. Knows no loss."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from rollart_hpc.config.schema import RunConfig


class Trained(NamedTuple):
    """A model with gradient buffers, and its optimizer."""

    model: Any
    optimizer: Any


def trained(model: torch.nn.Module, model_config: Any, config: RunConfig) -> Trained:
    wrapped = _replicated(model, model_config)
    return Trained(wrapped, _optimizer(wrapped, config))


def reduce(own: Trained) -> None:
    """Sum gradients over replicas, and those of shared weights over stages."""
    from megatron.core.distributed import finalize_model_grads

    finalize_model_grads([own.model])


def update(own: Trained, total: int, lr: float, weight_decay: float) -> float:
    """Divide gradients by `total`, clip them, update if they are finite. Returns their norm before clipping."""
    own.model.scale_gradients(1.0 / total)
    own.optimizer.prepare_grads()
    norm = float(own.optimizer.get_grad_norm())
    if np.isfinite(norm):
        for group in own.optimizer.param_groups:
            group["lr"] = lr
            group["weight_decay"] = weight_decay * group["wd_mult"]
        own.optimizer.step()
    return norm


def forget(own: Trained) -> None:
    own.model.zero_grad_buffer()
    own.optimizer.zero_grad()


def _replicated(model: torch.nn.Module, config: Any) -> Any:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    how = DistributedDataParallelConfig(grad_reduce_in_fp32=True, use_distributed_optimizer=True)
    wrapped = DistributedDataParallel(config, how, model)
    wrapped.zero_grad_buffer()
    return wrapped


def _optimizer(model: Any, config: RunConfig) -> Any:
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    trainer, dtype = config.trainer, getattr(torch, config.trainer.dtype)
    how = OptimizerConfig(
        optimizer="adam",
        lr=trainer.lr,
        weight_decay=trainer.weight_decay,
        adam_beta1=trainer.beta1,
        adam_beta2=trainer.beta2,
        adam_eps=1e-8,
        clip_grad=trainer.grad_clip,
        bf16=dtype == torch.bfloat16,
        params_dtype=dtype,
        use_distributed_optimizer=True,
    )
    return get_megatron_optimizer(how, [model], use_gloo_process_groups=False)
