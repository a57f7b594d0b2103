"""From summed gradients to new weights of one sharded model. Owns AdamW's settings and clipping; knows no loss."""

from __future__ import annotations

import numpy as np
import torch
from torch.distributed.tensor import DTensor

from rollart_hpc.config.schema import RunConfig


def adamw(model: torch.nn.Module, config: RunConfig) -> torch.optim.AdamW:
    """Weight decay for matrices, not for norms and biases. Fused: one pass over memory, on GPUs one kernel."""
    trainer = config.trainer
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": trainer.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (trainer.beta1, trainer.beta2)
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=trainer.lr, betas=betas, fused=True)


def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer, total: int, lr: float, clip: float) -> float:
    """Divide gradients by `total`, clip them, update if they are finite. Returns their norm before clipping."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    norm = _norm(grads) / total
    if np.isfinite(norm):
        shrink = min(1.0, clip / (norm + 1e-6)) if clip > 0 else 1.0
        for grad in grads:
            grad.mul_(shrink / total)
        for parameters in optimizer.param_groups:
            parameters["lr"] = lr
        optimizer.step()
    return norm


def forget(optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad(set_to_none=True)


def _norm(grads: list[torch.Tensor]) -> float:
    total = torch.nn.utils.get_total_norm(grads)
    return float(total.full_tensor() if isinstance(total, DTensor) else total)
