"""A value model beside the policy: what a play will still earn, predicted before each sampled token.

Owns its loss, its order in a step and its metrics; backends own the model. Observed tokens have no value and are
skipped: the token after a sampled one is the next sampled one, also of the next turn.

    judge   before the advantages: values of all samples of the step, the same on every rank
    train   after the policy's update: the same micro-batches, weights and divisor
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.trainers.batches import Batch
from rollart_hpc.trainers.packing import MicroBatch
from rollart_hpc.trainers.schedule import learning_rate
from rollart_hpc.trainers.world import World
from rollart_hpc.types import Sample, TrainGroup

LossOf = Callable[[MicroBatch, torch.Tensor], torch.Tensor]


def value_loss(values: torch.Tensor, before: torch.Tensor, returns: torch.Tensor, clip: float) -> torch.Tensor:
    """Half the squared error per token; values further than `clip` from those before the step don't count as better."""
    free = (values - returns) ** 2
    if clip <= 0:
        return 0.5 * free
    return 0.5 * free.maximum((values.clamp(before - clip, before + clip) - returns) ** 2)


class Critic(ABC):
    def __init__(self, config: RunConfig, world: World, *, counts: bool = True) -> None:
        """`counts`: False on all ranks of a replica but one."""
        self._config = config
        self._world = world
        self._counts = counts
        self._loss = 0.0  # summed over this rank's tokens of the present update

    @abstractmethod
    def _values(self, micros: list[MicroBatch]) -> list[torch.Tensor]:
        """Of the sampled tokens of each micro-batch, without gradients. A collective."""

    @abstractmethod
    def _forward_backward(self, micros: list[MicroBatch], loss_of: LossOf) -> None:
        """Sum gradients."""

    @abstractmethod
    def _update(self, num_bins: int, total: int, lr: float) -> float:
        """Sum gradients over replicas, divide, clip, update if they are finite. Returns their norm before clipping."""

    def judge(self, groups: list[TrainGroup], batch: Batch, replica: int) -> None:
        """Give every sample its values. `batch` is empty and belongs to this call."""
        for group in groups:
            batch.add(group, [1.0] * len(group.samples))
        bins = batch.bins(batch.waiting.rest(), replica)
        found = [np.zeros(batch.num_tokens(i)) for i in range(len(batch.samples))]
        for members, values in zip(bins, self._values(batch.packed(bins)) if bins else [], strict=True):
            ends = np.cumsum([len(found[i]) for i in members])[:-1]
            for i, part in zip(members, np.split(values.double().cpu().numpy(), ends)):
                found[i] = part if self._counts else found[i]
        everything = np.concatenate(found) if found else np.zeros(0)
        added = np.array(self._world.sum(everything.tolist()), np.float32)  # each replica knows those of its samples
        parts = np.split(added, np.cumsum([len(part) for part in found])[:-1]) if found else []
        for sample, part in zip(batch.samples, parts, strict=True):
            sample.values = part

    def train(self, micros: list[MicroBatch], num_bins: int, total: int, version: int) -> dict[str, float]:
        trainer, critic = self._config.trainer, self._config.algorithm.critic
        self._loss = 0.0
        if micros:
            self._forward_backward(micros, self._loss_of)
        (loss,) = self._world.sum([self._loss])
        lr = learning_rate(replace(trainer, lr=critic.lr or trainer.lr), version, self._config.steps)
        norm = self._update(num_bins, total, lr)
        return {"value_loss": loss / total, "value_grad_norm": norm if np.isfinite(norm) else -1.0, "value_lr": lr}

    def _loss_of(self, micro: MicroBatch, values: torch.Tensor) -> torch.Tensor:
        assert micro.values is not None and micro.returns is not None
        each = value_loss(values, micro.values, micro.returns, self._config.algorithm.critic.clip)
        loss = (each * micro.weights).sum()
        self._loss += float(loss.detach()) if self._counts else 0.0
        return loss


def explained_variance(samples: list[Sample]) -> float:
    """Share of the variance of returns that values before the step explain; 1 = all, 0 or less = nothing."""
    known = [(s.returns, s.values) for s in samples if s.returns is not None and s.values is not None]
    if not known:
        return 0.0
    returns, values = (np.concatenate(parts).astype(np.float64) for parts in zip(*known))
    spread = returns.var()
    return float(1.0 - (returns - values).var() / spread) if spread > 0 else 0.0
