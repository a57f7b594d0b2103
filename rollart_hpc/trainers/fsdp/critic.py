"""The value model of the trainer `fsdp`: the base model with one output instead of a vocabulary, and its optimizer."""

from __future__ import annotations

from pathlib import Path

import torch

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.trainers.critic import Critic, LossOf
from rollart_hpc.trainers.fsdp.model import is_sharded, load_critic, reshard
from rollart_hpc.trainers.fsdp.updating import adamw, forget, update
from rollart_hpc.trainers.packing import MicroBatch, pack
from rollart_hpc.trainers.world import World


class FsdpCritic(Critic):
    """Sharded over all ranks, like the policy."""

    def __init__(self, config: RunConfig, model_dir: Path, world: World) -> None:
        super().__init__(config, world)
        self.model = load_critic(model_dir, world, config)
        self.optimizer = adamw(self.model, config)
        self._adds_at_step = is_sharded(self.model) and (config.deterministic or world.size == 1)
        if self._adds_at_step:
            self.model.set_requires_gradient_sync(False)

    def _values(self, micros: list[MicroBatch]) -> list[torch.Tensor]:
        with torch.no_grad():
            found = [self.model.value(micro)[: micro.num_sampled] for micro in micros]
        reshard(self.model)
        return found

    def _forward_backward(self, micros: list[MicroBatch], loss_of: LossOf) -> None:
        for micro in micros:
            values = self.model.value(micro)
            (loss_of(micro, values) if micro.num_sampled else values.sum() * 0.0).backward()

    def _update(self, num_bins: int, total: int, lr: float) -> float:
        if self._adds_at_step and num_bins:
            self.model.set_requires_gradient_sync(True)
            (self.model.value(pack([], [], self._world.device)).sum() * 0.0).backward()
            self.model.set_requires_gradient_sync(False)
        norm = update(self.model, self.optimizer, total, lr, self._config.trainer.grad_clip)
        forget(self.optimizer)
        return norm
