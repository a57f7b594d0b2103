"""One rank of the trainer `megatron`. Owns forward, backward and update with megatron's schedules; `step` the rest.

A replica is tensor_parallel x pipeline_parallel ranks. Log-probs are on the ranks of its last stage, which all compute
the same loss; the first of them counts it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import SiteError
from rollart_hpc.extras import install
from rollart_hpc.trainers.checksums import Head
from rollart_hpc.trainers.megatron import cpu_shim
from rollart_hpc.trainers.megatron.backend import sizes_of
from rollart_hpc.trainers.packing import MicroBatch
from rollart_hpc.trainers.step import StepTrainer
from rollart_hpc.trainers.world import World


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
        self._model = _replicated(loaded.model, loaded.config)
        self._optimizer = _optimizer(self._model, config)
        self._has_gradients = self._has_stepped = False
        self.begin()

    # --- gradients ---------------------------------------------------------------------------

    def _forward_backward(self, micros: list[MicroBatch]) -> None:
        references: list[torch.Tensor | None] = [None] * len(micros)
        if self._reference is not None:
            references = list(self._logprobs_of(self._reference, micros)) or references
        losses = [partial(self._micro_loss, micro, reference) for micro, reference in zip(micros, references)]
        self._run(self._model, micros, losses, forward_only=False)

    def _run(
        self,
        model: torch.nn.Module,
        micros: list[MicroBatch],
        after: Sequence[Callable[..., Any]],
        *,
        forward_only: bool,
    ) -> list[Any]:
        """Run all stages; on the last one `after` gets the scores of each micro-batch."""
        from megatron.core.pipeline_parallel import get_forward_backward_func

        scoring = self._scoring._replace(with_entropy=not forward_only and self._config.algorithm.entropy > 0)

        def forward(work: Iterator[tuple[MicroBatch, Callable[..., Any]]], model: torch.nn.Module) -> tuple[Any, Any]:
            micro, then = next(work)
            return model(micro, scoring), then

        return get_forward_backward_func()(
            forward_step_func=forward,
            data_iterator=zip(micros, after),
            model=model,
            num_microbatches=len(micros),
            seq_length=1,  # unused: stages send each other the shapes
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )

    def _micro_loss(
        self, micro: MicroBatch, reference: torch.Tensor | None, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        """The form that megatron's schedules expect: the sum, a divisor (unused here), nothing to report."""
        unused = torch.zeros((), dtype=torch.int, device=scores.device)
        if not micro.num_sampled:
            return scores.sum() * 0.0, unused, None
        entropy = scores[0, :, 1] if scores.shape[-1] > 1 else None
        return self._loss(micro, scores[0, :, 0], entropy=entropy, reference=reference), unused, None

    def _reduce(self, num_bins: int) -> None:
        from megatron.core.distributed import finalize_model_grads

        self._has_gradients = num_bins > 0
        if self._has_gradients:
            finalize_model_grads([self._model])

    def _optimize(self, total: int, lr: float) -> float:
        if not self._has_gradients:
            return 0.0
        self._model.scale_gradients(1.0 / total)
        self._optimizer.prepare_grads()
        norm = float(self._optimizer.get_grad_norm())
        if np.isfinite(norm):
            for group in self._optimizer.param_groups:
                group["lr"] = lr
                group["weight_decay"] = self._config.trainer.weight_decay * group["wd_mult"]
            self._optimizer.step()
            self._has_stepped = True
        return norm

    def _forget_gradients(self) -> None:
        self._model.zero_grad_buffer()
        self._optimizer.zero_grad()

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
            return self._run(model, micros, [partial(take, micro) for micro in micros], forward_only=True)

    # --- checkpoints -------------------------------------------------------------------------

    def save(self, directory: Path) -> None:
        from rollart_hpc.trainers.megatron import checkpoint

        head = Head(version=self.version, digest=self.digest, ranks=self._world.size, has_stepped=self._has_stepped)
        checkpoint.save(directory, checkpoint.State(self._model, self._optimizer), self._world, head)

    def _restore(self, directory: Path) -> Head:
        from rollart_hpc.trainers.megatron import checkpoint

        head = checkpoint.load(directory, checkpoint.State(self._model, self._optimizer), self._world)
        self._has_stepped = head.has_stepped
        return head


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
