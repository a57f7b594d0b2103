"""The trainer `fsdp`: FSDP2 over a transformers model. Owns forward, backward and update; `step` owns the rest.

Every rank is a replica: weights are sharded over all ranks (a single rank has them whole), and each micro-batch
belongs to one rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import PreTrainedModel

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.trainers.checksums import Head
from rollart_hpc.trainers.fsdp import checkpoint, lora
from rollart_hpc.trainers.fsdp.critic import FsdpCritic
from rollart_hpc.trainers.fsdp.model import (
    full_tensors,
    is_sharded,
    load_reference,
    load_trained,
    reshard,
    sampled_scores,
)
from rollart_hpc.trainers.fsdp.updating import adamw, forget, update
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
        self._optimizer = adamw(self._model, config)
        if config.algorithm.needs_critic:
            self._critic = FsdpCritic(config, model_dir, world)
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
        return update(self._model, self._optimizer, total, lr, self._config.trainer.grad_clip)

    def _forget_gradients(self) -> None:
        forget(self._optimizer)

    def _renew_reference(self) -> None:
        assert self._reference is not None, "a reference under adapters can't be renewed"
        with torch.no_grad():
            for theirs, mine in zip(self._reference.parameters(), self._model.parameters(), strict=True):
                theirs.copy_(mine)

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
        checkpoint.save(directory, self._state(), self._world, version=self.version, digest=self.digest)

    def _restore(self, directory: Path) -> Head:
        state = self._state()
        head = checkpoint.load(directory, state, self._world)
        if state.kl is not None:
            self._objective.kl = float(state.kl)
        return head

    def _state(self) -> checkpoint.State:
        algorithm = self._config.algorithm
        return checkpoint.State(
            self._model,
            self._optimizer,
            reference=self._reference if algorithm.kl_refresh else None,
            critic=self._critic if isinstance(self._critic, FsdpCritic) else None,
            kl=torch.tensor(self._objective.kl, dtype=torch.float64) if algorithm.kl_target else None,
        )
