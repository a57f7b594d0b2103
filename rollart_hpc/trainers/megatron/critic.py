"""The value model of the trainer `megatron`: the base model with one output on its last stage, and its optimizer."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.trainers.critic import Critic, LossOf
from rollart_hpc.trainers.megatron import stages, updating
from rollart_hpc.trainers.packing import MicroBatch
from rollart_hpc.trainers.world import World


class MegatronCritic(Critic):
    """Split and replicated like the policy."""

    def __init__(self, config: RunConfig, model_dir: Path, world: World, *, is_last_stage: bool, counts: bool) -> None:
        from rollart_hpc.trainers.megatron import model

        super().__init__(config, world, counts=counts)
        loaded = model.load_critic(model_dir, config, world)
        self.own = updating.trained(loaded.model, loaded.config, config)
        self.has_stepped = False
        self._is_last_stage = is_last_stage

    def _values(self, micros: list[MicroBatch]) -> list[torch.Tensor]:
        def take(micro: MicroBatch, values: torch.Tensor, non_loss_data: bool = True) -> torch.Tensor:
            return values[0, : micro.num_sampled, 0]

        with torch.no_grad():
            found = stages.run(self.own.model, micros, [partial(take, micro) for micro in micros], forward_only=True)
        return found if self._is_last_stage else [torch.zeros(micro.num_sampled) for micro in micros]

    def _forward_backward(self, micros: list[MicroBatch], loss_of: LossOf) -> None:
        def loss(micro: MicroBatch, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
            each = values[0, :, 0]
            return stages.summed(loss_of(micro, each) if micro.num_sampled else each.sum() * 0.0)

        stages.run(self.own.model, micros, [partial(loss, micro) for micro in micros], forward_only=False)

    def _update(self, num_bins: int, total: int, lr: float) -> float:
        norm = 0.0
        if num_bins:
            updating.reduce(self.own)
            norm = updating.update(self.own, total, lr, self._config.trainer.weight_decay)
            self.has_stepped = True
        updating.forget(self.own)
        return norm
