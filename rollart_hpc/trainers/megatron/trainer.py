"""One rank of the trainer `megatron`. Owns forward, backward and update with megatron's schedules; `step` the rest.

A replica is tensor_parallel x pipeline_parallel ranks. Log-probs are on the ranks of its last stage, which all compute
the same loss; the first of them counts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import SiteError
from rollart_hpc.extras import install
from rollart_hpc.trainers.checksums import Head
from rollart_hpc.trainers.megatron import cpu_shim, stages, updating
from rollart_hpc.trainers.megatron.backend import sizes_of
from rollart_hpc.trainers.megatron.critic import MegatronCritic
from rollart_hpc.trainers.packing import MicroBatch
from rollart_hpc.trainers.step import StepTrainer
from rollart_hpc.trainers.world import World

if TYPE_CHECKING:
    from rollart_hpc.trainers.megatron import checkpoint


def make_trainer(config: RunConfig, model_dir: Path, world: World) -> MegatronTrainer:
    """megatron expects a GPU when it is imported, so the shim must be installed first."""
    if world.device.type == "cpu":
        cpu_shim.install()
    try:
        return MegatronTrainer(config, model_dir, world)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(("megatron", "transformer_engine")):
            raise
        what = f"trainer.kind is megatron, but {error.name} is not installed"
        raise SiteError(what, f"{install('megatron')}, and transformer_engine on GPUs") from None


class MegatronTrainer(StepTrainer):
    """Each replica sums its own gradients until the step, so the result does not depend on how a batch was cut."""

    def __init__(self, config: RunConfig, model_dir: Path, world: World) -> None:
        from megatron.core import parallel_state as groups

        from rollart_hpc.trainers.megatron import model

        sizes = sizes_of(config)
        model.open_groups(sizes)
        super().__init__(
            config,
            model_dir,
            world,
            replica=groups.get_data_parallel_rank(),
            num_replicas=groups.get_data_parallel_world_size(),
            num_stages=sizes.pipeline_parallel,
        )
        loaded = model.load(model_dir, config, world)
        self._table, self._coordinates = loaded.table, loaded.coordinates
        self._scoring = model.Scoring(config.flow.temperature, loaded.family.vocabulary)
        self._pipeline_group = groups.get_pipeline_model_parallel_group()
        self._is_last_stage = groups.is_pipeline_last_stage()
        self._tallies = self._is_last_stage and self._coordinates.tensor_rank == 0
        self._reference = None
        if config.algorithm.kl > 0:
            self._reference = model.load(model_dir, config, world).model
            self._reference.requires_grad_(False)
        self._own = updating.trained(loaded.model, loaded.config, config)
        self._model = self._own.model
        if config.algorithm.needs_critic:
            self._critic = MegatronCritic(
                config, model_dir, world, is_last_stage=self._is_last_stage, counts=self._tallies
            )
        self._has_gradients = self._has_stepped = False
        self.begin()

    # --- gradients ---------------------------------------------------------------------------

    def _forward_backward(self, micros: list[MicroBatch]) -> None:
        references: list[torch.Tensor | None] = [None] * len(micros)
        if self._reference is not None:
            references = list(self._logprobs_of(self._reference, micros)) or references
        losses = [partial(self._micro_loss, micro, reference) for micro, reference in zip(micros, references)]
        stages.run(self._model, micros, losses, self._scoring_of(with_entropy=True), forward_only=False)

    def _scoring_of(self, *, with_entropy: bool) -> Any:
        return self._scoring._replace(with_entropy=with_entropy and self._config.algorithm.entropy > 0)

    def _micro_loss(
        self, micro: MicroBatch, reference: torch.Tensor | None, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        if not micro.num_sampled:
            return stages.summed(scores.sum() * 0.0)
        entropy = scores[0, :, 1] if scores.shape[-1] > 1 else None
        return stages.summed(self._loss(micro, scores[0, :, 0], entropy=entropy, reference=reference))

    def _reduce(self, num_bins: int) -> None:
        self._has_gradients = num_bins > 0
        if self._has_gradients:
            updating.reduce(self._own)

    def _optimize(self, total: int, lr: float) -> float:
        if not self._has_gradients:
            return 0.0
        norm = updating.update(self._own, total, lr, self._config.trainer.weight_decay)
        self._has_stepped = self._has_stepped or bool(np.isfinite(norm))
        return norm

    def _forget_gradients(self) -> None:
        updating.forget(self._own)

    def _renew_reference(self) -> None:
        assert self._reference is not None
        with torch.no_grad():
            for theirs, mine in zip(self._reference.parameters(), self._model.module.parameters(), strict=True):
                theirs.copy_(mine)

    # --- weights and log-probs ---------------------------------------------------------------

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yields on rank 0 only; the other ranks take part in the gathering."""
        from rollart_hpc.trainers.megatron import exchange

        return exchange.gathered(dict(self._model.module.named_parameters()), self._table, self._coordinates)

    def _chosen_logprobs(self, micros: list[MicroBatch]) -> list[torch.Tensor]:
        found = self._logprobs_of(self._model, micros)
        if not self._is_last_stage:
            found = [torch.empty(micro.num_sampled, device=self._world.device) for micro in micros]
        last = dist.get_process_group_ranks(self._pipeline_group)[-1]
        for logprobs in found:
            dist.broadcast(logprobs, src=last, group=self._pipeline_group)
        return found

    def _logprobs_of(self, model: torch.nn.Module, micros: list[MicroBatch]) -> list[torch.Tensor]:
        """Log-probs on the last stage; an empty list on the others."""

        def take(micro: MicroBatch, scores: torch.Tensor, non_loss_data: bool = True) -> torch.Tensor:
            return scores[0, : micro.num_sampled, 0]

        with torch.no_grad():
            scoring = self._scoring_of(with_entropy=False)
            return stages.run(model, micros, [partial(take, micro) for micro in micros], scoring, forward_only=True)

    # --- checkpoints -------------------------------------------------------------------------

    def save(self, directory: Path) -> None:
        from rollart_hpc.trainers.megatron import checkpoint

        head = Head(version=self.version, digest=self.digest, ranks=self._world.size, has_stepped=self._has_stepped)
        checkpoint.save(directory, self._state(), self._world, head)

    def _restore(self, directory: Path) -> Head:
        from rollart_hpc.trainers.megatron import checkpoint

        head, kl = checkpoint.load(directory, self._state(), self._world)
        self._has_stepped = head.has_stepped
        if self._config.algorithm.kl_target:
            self._objective.kl = kl
        return head

    def _state(self) -> checkpoint.State:
        from rollart_hpc.trainers.megatron import checkpoint

        return checkpoint.State(
            self._own,
            self._objective.kl,
            reference=self._reference if self._config.algorithm.kl_refresh else None,
            critic=self._critic if isinstance(self._critic, MegatronCritic) else None,
        )
