"""The trainer `fsdp`: FSDP2 over a transformers model. Owns forward, backward and update; `step` owns the rest.

Every rank is a replica: weights are sharded over all ranks (a single rank has them whole), and each micro-batch
belongs to one rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.trainers.checksums import Head
from rollart_hpc.trainers.fsdp import checkpoint, lora
from rollart_hpc.trainers.fsdp.model import (
    full_tensors,
    is_sharded,
    load_reference,
    load_trained,
    reshard,
    sampled_scores,
)
from rollart_hpc.trainers.packing import MicroBatch
from rollart_hpc.trainers.step import StepTrainer
from rollart_hpc.trainers.world import World


class FsdpTrainer(StepTrainer):
    """Gradients are summed over ranks after every micro-batch, so that no rank holds more than its shard of them.

    Deterministic: each rank sums its own gradients until the step.
    """

    def __init__(self, config: RunConfig, model_dir: Path, world: World) -> None:
        super().__init__(config, model_dir, world, replica=world.rank, num_replicas=world.size)
        self._dtype = getattr(torch, config.trainer.dtype)
        self._model = load_trained(model_dir, world, config)
        # With one rank, reducing early would only cost an extra copy.
        self._adds_at_step = is_sharded(self._model) and (config.deterministic or world.size == 1)
        if self._adds_at_step:
            self._model.set_requires_gradient_sync(False)
        self._reference = None
        if config.algorithm.kl > 0 and not config.trainer.lora.rank:
            self._reference = load_reference(model_dir, world, config)
        self._optimizer = _adamw(self._model, config)
        self.begin()

    # --- gradients ---------------------------------------------------------------------------

    def _forward_backward(self, micros: list[MicroBatch]) -> None:
        for micro in micros:
            self._train_one(micro)

    def _train_one(self, micro: MicroBatch) -> None:
        reference = self._reference_logprobs(micro) if self._config.algorithm.kl > 0 else None
        with_entropy = self._config.algorithm.entropy > 0
        scores = sampled_scores(self._model, micro, self._config.flow.temperature, with_entropy=with_entropy)
        if not micro.num_sampled:
            (scores.sum() * 0.0).backward()
            return
        entropy = scores[:, 1] if with_entropy else None
        self._loss(micro, scores[:, 0], entropy=entropy, reference=reference).backward()

    def _reference_logprobs(self, micro: MicroBatch) -> torch.Tensor:
        if self._reference is not None:
            return self._chosen_of(self._reference, micro)
        with lora.switched_off(self._model):
            return self._chosen_of(self._model, micro)

    def _reduce(self, num_bins: int) -> None:
        """Reduce by running the backward of an empty micro-batch."""
        if not self._adds_at_step or not num_bins:
            return
        self._model.set_requires_gradient_sync(True)
        self._train_one(self._pack([], []))
        self._model.set_requires_gradient_sync(False)

    def _optimize(self, total: int, lr: float) -> float:
        clip = self._config.trainer.grad_clip
        grads = [p.grad for p in self._model.parameters() if p.grad is not None]
        norm = _norm(grads) / total
        if np.isfinite(norm):
            shrink = min(1.0, clip / (norm + 1e-6)) if clip > 0 else 1.0
            for grad in grads:
                grad.mul_(shrink / total)
            for parameters in self._optimizer.param_groups:
                parameters["lr"] = lr
            self._optimizer.step()
        return norm

    def _forget_gradients(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)

    # --- weights and log-probs ---------------------------------------------------------------

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        return full_tensors(self._model, self._dtype)

    def adapters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The trained adapters alone, with peft's names; empty without them."""
        return lora.adapters(self._model)

    def _chosen_logprobs(self, micros: list[MicroBatch]) -> list[torch.Tensor]:
        chosen = [self._chosen_of(self._model, micro) for micro in micros]
        reshard(self._model)
        return chosen

    def _chosen_of(self, model: PreTrainedModel, micro: MicroBatch) -> torch.Tensor:
        with torch.no_grad():
            return sampled_scores(model, micro, self._config.flow.temperature)[: micro.num_sampled, 0]

    # --- checkpoints -------------------------------------------------------------------------

    def save(self, directory: Path) -> None:
        state = checkpoint.State(self._model, self._optimizer)
        checkpoint.save(directory, state, self._world, version=self.version, digest=self.digest)

    def _restore(self, directory: Path) -> Head:
        return checkpoint.load(directory, checkpoint.State(self._model, self._optimizer), self._world)


def _adamw(model: torch.nn.Module, config: RunConfig) -> torch.optim.AdamW:
    """Weight decay for matrices, not for norms and biases. Fused: one pass over memory, on GPUs one kernel."""
    trainer = config.trainer
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": trainer.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    betas = (trainer.beta1, trainer.beta2)
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=trainer.lr, betas=betas, fused=True)


def _norm(grads: list[torch.Tensor]) -> float:
    total = torch.nn.utils.get_total_norm(grads)
    return float(total.full_tensor() if isinstance(total, DTensor) else total)
