"""The trainer `fsdp`: FSDP2 over a transformers model. Owns one step from groups to new weights.

    accumulate: advantages -> micro-batches of this rank -> forward, loss, backward, each
    step:       add up over ranks -> divide once -> clip -> AdamW -> digest

Must not know where groups come from or where weights go.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import SiteError
from rollart_hpc.trainers import algorithms, checkpoint, packing
from rollart_hpc.trainers.contract import StepResult
from rollart_hpc.trainers.model import full_tensors, load_sharded, sampled_logits
from rollart_hpc.trainers.packing import Bin, MicroBatch
from rollart_hpc.trainers.tally import Tally
from rollart_hpc.trainers.world import World
from rollart_hpc.types import Sample, TokenRecord, TrainGroup
from rollart_hpc.weights.digest import digest

log = logging.getLogger(__name__)


class FsdpTrainer:
    """One rank of it.

    Gradients are added over ranks after every micro-batch, so that no rank holds more than its shard of them.
    Deterministic: micro-batches keep to one group and to the groups' order, and each rank sums its gradients by itself
    until the step, so that the sums do not depend on how the batch was cut into chunks.
    """

    def __init__(self, config: RunConfig, model_dir: Path, world: World) -> None:
        self.version = 0
        self._config = config
        self._world = world
        self._dtype = getattr(torch, config.trainer.dtype)
        if config.deterministic:
            _use_deterministic_kernels()
        self._model = load_sharded(model_dir, world, self._dtype)
        self._adds_at_step = config.deterministic or world.size == 1  # alone, adding early is only a copy more
        self._model.set_requires_gradient_sync(not self._adds_at_step)
        self._reference = None
        if config.algorithm.kl > 0:
            self._reference = load_sharded(model_dir, world, self._dtype).requires_grad_(False)
        self._optimizer = _adamw(self._model, config)
        self._tally = Tally()
        self._num_bins = 0  # dealt since the last step
        self._held: list[TrainGroup] = []
        self.digest = digest(self.export())

    # --- one step ----------------------------------------------------------------------------

    def accumulate(self, groups: list[TrainGroup]) -> None:
        if algorithms.scope(self._config.algorithm.estimator) == "batch":
            self._held += groups
        else:
            self._train(groups)

    def step(self) -> StepResult:
        if self._held:
            groups, self._held = self._held, []
            self._train(groups)
        self._reduce()
        tally, self._tally = self._tally, Tally()
        total = algorithms.step_total(self._config.algorithm.aggregation, tally.num_tokens, tally.num_samples)
        metrics = tally.metrics(self._world, total) | self._update(total)
        self.version += 1
        parent, self.digest = self.digest, digest(self.export())
        return StepResult(self.version, parent, self.digest, metrics)

    def discard(self) -> None:
        self._held = []
        self._tally = Tally()
        self._reduce()
        self._optimizer.zero_grad(set_to_none=True)

    def _train(self, groups: list[TrainGroup]) -> None:
        """Forward and backward of this rank's share."""
        if self._config.deterministic:
            groups = sorted(groups, key=lambda group: group.group)
        algorithms.assign_advantages(groups, self._config.algorithm)
        for group in groups:
            self._tally.rewards += algorithms.trajectory_rewards(group.samples).values()
        kept = [_trainable(group) for group in groups]
        samples = [sample for group in kept for sample in group.samples]
        counts = [packing.num_trainable(sample) for sample in samples]
        self._tally.num_samples += len(samples)
        self._tally.num_tokens += sum(counts)
        weights = [algorithms.token_weight(self._config.algorithm.aggregation, count) for count in counts]
        for members in self._share(kept, samples):
            micro = packing.pack([samples[i] for i in members], [weights[i] for i in members], self._world.device)
            self._forward_backward(micro)

    def _share(self, groups: list[TrainGroup], samples: list[Sample]) -> list[Bin]:
        """This rank's micro-batches; every rank gets the same number."""
        budget, world = self._config.trainer.microbatch_tokens, self._world
        if self._config.deterministic:
            bins = packing.bins_in_order(groups, budget)
            hands = packing.deal(bins, world.size, first=self._num_bins % world.size)
        else:
            hands = packing.plan([len(sample.record) for sample in samples], budget, world.size)
        self._num_bins += sum(bool(members) for hand in hands for members in hand)
        return hands[world.rank]

    def _forward_backward(self, micro: MicroBatch) -> None:
        logits = sampled_logits(self._model, micro, self._config.flow.temperature)
        reference = None if self._reference is None else self._chosen_logprobs(self._reference, micro)
        if not micro.num_sampled:
            (logits.sum() * 0.0).backward()
            return
        logprobs = torch.log_softmax(logits, -1)
        new = _chosen(logprobs, micro)
        terms = algorithms.token_terms(
            self._config.algorithm,
            logprobs,
            new,
            behaviour=micro.behaviour,
            advantages=micro.advantages,
            reference=reference,
        )
        loss = (terms.loss * micro.weights).sum()
        loss.backward()
        self._tally.add(micro, terms, version=self.version, loss=loss, new=new)

    def _reduce(self) -> None:
        """Add up over ranks what each summed by itself, by the backward of an empty micro-batch."""
        num_bins, self._num_bins = self._num_bins, 0
        if not self._adds_at_step or not num_bins:
            return
        self._model.set_requires_gradient_sync(True)
        self._forward_backward(packing.pack([], [], self._world.device))
        self._model.set_requires_gradient_sync(False)

    def _update(self, total: int) -> dict[str, float]:
        """Divide, clip, optimize. Gradients that are not finite would ruin the weights: that update is left out."""
        trainer = self._config.trainer
        lr = algorithms.learning_rate(trainer, self.version, self._config.steps)
        grads = [p.grad for p in self._model.parameters() if p.grad is not None]
        norm = _norm(grads) / total
        is_finite = bool(np.isfinite(norm))
        if is_finite:
            shrink = min(1.0, trainer.grad_clip / (norm + 1e-6)) if trainer.grad_clip > 0 else 1.0
            for grad in grads:
                grad.mul_(shrink / total)
            for parameters in self._optimizer.param_groups:
                parameters["lr"] = lr
            self._optimizer.step()
        else:
            log.warning("step %d: gradients are not finite, weights stay as they are", self.version)
        self._optimizer.zero_grad(set_to_none=True)
        return {"grad_norm": norm if is_finite else -1.0, "lr": lr, "update_skipped": float(not is_finite)}

    # --- weights and log-probs ---------------------------------------------------------------

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        return full_tensors(self._model, self._dtype)

    def logprobs(self, records: list[TokenRecord]) -> list[NDArray[np.float32]]:
        """Every rank computes all of them."""
        out = [np.zeros(len(record), np.float32) for record in records]
        samples = [Sample("", 0, "", record, 0.0) for record in records]
        (bins,) = packing.plan([len(record) for record in records], self._config.trainer.microbatch_tokens, ranks=1)
        for members in bins:
            micro = packing.pack([samples[i] for i in members], [1.0] * len(members), self._world.device)
            packed = np.zeros(micro.ids.shape[1], np.float32)
            if (chosen := self._chosen_logprobs(self._model, micro)) is not None:
                packed[micro.keep.cpu().numpy() + 1] = chosen.cpu().numpy()
            for i, part in zip(members, np.split(packed, np.cumsum(micro.lengths)[:-1]), strict=True):
                out[i][:] = part
        self._model.reshard()
        return out

    def _chosen_logprobs(self, model: PreTrainedModel, micro: MicroBatch) -> torch.Tensor | None:
        """Of the sampled tokens, without gradients; None if there are none. A collective either way."""
        with torch.no_grad():
            logits = sampled_logits(model, micro, self._config.flow.temperature)
            return _chosen(torch.log_softmax(logits, -1), micro) if micro.num_sampled else None

    # --- checkpoints -------------------------------------------------------------------------

    def save(self, directory: Path) -> None:
        state = checkpoint.State(self._model, self._optimizer)
        checkpoint.save(directory, state, self._world, version=self.version, digest=self.digest)

    def load(self, directory: Path) -> None:
        self.discard()
        head = checkpoint.load(directory, checkpoint.State(self._model, self._optimizer), self._world)
        self.version, self.digest = head.version, digest(self.export())
        if self.digest != head.digest:
            raise SiteError(f"checkpoint {directory} yields weights {self.digest}, expected {head.digest}")


def _chosen(logprobs: torch.Tensor, micro: MicroBatch) -> torch.Tensor:
    return logprobs.gather(1, micro.targets[:, None])[:, 0]


def _trainable(group: TrainGroup) -> TrainGroup:
    """Without samples in which nothing was sampled: there is nothing to learn from them."""
    return TrainGroup(group.group, group.task, [s for s in group.samples if packing.num_trainable(s)])


def _adamw(model: torch.nn.Module, config: RunConfig) -> torch.optim.AdamW:
    """Weight decay for matrices, not for norms and biases."""
    trainer = config.trainer
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": trainer.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=trainer.lr, betas=(trainer.beta1, trainer.beta2))


def _norm(grads: list[torch.Tensor]) -> float:
    total = torch.nn.utils.get_total_norm(grads)
    return float(total.full_tensor() if isinstance(total, DTensor) else total)


def _use_deterministic_kernels() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Finds reads of uninitialized memory in torch itself; costs time and changes no result of ours.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
