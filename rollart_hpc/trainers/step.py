"""One training step, from groups to new weights, for every backend. Owns losses, the tally and the step's arithmetic.

    accumulate: compute advantages -> wait until all replicas have full micro-batches (`merging`)
                -> forward, loss and backward of this replica's micro-batches                        (backend)
    step:       train the rest -> sum over replicas -> divide once -> clip -> update -> digest       (backend)

A replica is a complete model, on one rank or on several; with FSDP each rank is a replica and holds one shard. Must not
know where groups come from, where weights go, or how a model is laid out.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import SiteError
from rollart_hpc.trainers import algorithms, packing
from rollart_hpc.trainers.batches import Batch, Counts
from rollart_hpc.trainers.checksums import Head
from rollart_hpc.trainers.contract import Keep, StepResult
from rollart_hpc.trainers.critic import Critic, explained_variance
from rollart_hpc.trainers.flops import operations
from rollart_hpc.trainers.merging import Balanced, InOrder, Waiting
from rollart_hpc.trainers.packing import MicroBatch
from rollart_hpc.trainers.planning import Planner, Slot
from rollart_hpc.trainers.schedule import learning_rate
from rollart_hpc.trainers.speed import peak_bytes
from rollart_hpc.trainers.tally import Tally
from rollart_hpc.trainers.world import World
from rollart_hpc.types import Sample, TokenRecord, TrainGroup
from rollart_hpc.vocabulary import EventKind
from rollart_hpc.weights.digest import digest

log = logging.getLogger(__name__)


class StepTrainer(ABC):
    """One rank of a trainer. Backends implement the abstract methods and call `begin` once their model is built.

    With `deterministic`, a micro-batch has samples of one group only, and groups keep their order. Sums then do not
    depend on how the batch was cut into chunks.
    """

    def __init__(
        self, config: RunConfig, model_dir: Path, world: World, *, replica: int, num_replicas: int, num_stages: int = 1
    ) -> None:
        self.version = 0
        self.digest = ""
        self._config = config
        self._world = world
        self._replica = replica
        self._num_stages = num_stages
        self._operations = operations(model_dir)
        self._planner = Planner(num_replicas, config.trainer.microbatch_tokens, self._operations.even_tokens)
        limits = {name: task.max_tokens for name, task in config.tasks.items()}
        self._objective = algorithms.Objective(config.algorithm, limits)
        self._critic: Critic | None = None  # set by a backend that declares `critic`, if the algorithm needs one
        self._tallies = True  # False on all ranks of a replica but one
        self._clear()
        if config.deterministic:
            _use_deterministic_kernels()

    def begin(self) -> None:
        self.digest = self._weights_digest()

    # --- what a backend does -----------------------------------------------------------------

    @abstractmethod
    def _forward_backward(self, micros: list[MicroBatch]) -> None:
        """Run forward and backward of each micro-batch, with `_loss` on the rank that has log-probs. Sum gradients."""

    @abstractmethod
    def _chosen_logprobs(self, micros: list[MicroBatch]) -> list[torch.Tensor]:
        """Log-probs of the sampled tokens of each micro-batch, on every rank, without gradients. A collective."""

    @abstractmethod
    def _reduce(self, num_bins: int) -> None:
        """Sum gradients over replicas. `num_bins` counts the micro-batches that all replicas have trained."""

    @abstractmethod
    def _optimize(self, total: int, lr: float) -> float:
        """Divide gradients by `total`, clip them, update if they are finite. Returns their norm before clipping."""

    @abstractmethod
    def _forget_gradients(self) -> None: ...

    def _renew_reference(self) -> None:
        """The reference gets the weights of the policy. Called only of a backend that declares `kl_refresh`."""
        raise NotImplementedError

    @abstractmethod
    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """See the contract."""

    @abstractmethod
    def save(self, directory: Path) -> None:
        """See the contract."""

    @abstractmethod
    def _restore(self, directory: Path) -> Head:
        """Load weights and optimizer state in place."""

    def _weights_digest(self, keep: Keep = digest) -> str:
        """Rank 0 hands the weights to `keep`; the other ranks take part in gathering them, and are told the digest."""
        mine = [keep(self.export()).encode()] if self._world.rank == 0 else None
        if mine is None:
            for _ in self.export():
                pass
        (told,) = self._world.broadcast(mine)
        return bytes(told).decode()

    # --- one step ----------------------------------------------------------------------------

    def accumulate(self, groups: list[TrainGroup], *, last: bool = False) -> None:
        if self._config.algorithm.needs_whole_batch:
            self._held += groups
            return
        self._fill(self._batch, self._with_advantages(groups))
        if not last:
            self._train(self._batch.waiting.ready())

    def step(self, keep: Keep | None = None) -> StepResult:
        algorithm, tally = self._config.algorithm, self._tally
        held = self._with_advantages(self._held)
        if algorithm.updates * algorithm.epochs == 1 and self._critic is None:
            self._fill(self._batch, held)
            batches = [self._batch]
            self._add_up()
            metrics = self._update(self._batch)
        else:
            batches = self._mini_batches(held)
            metrics = self._train_in_turn(batches)
        self._clear()
        counts = sum((batch.counts for batch in batches), Counts())
        metrics = tally.metrics(self._world, counts, algorithm.epochs) | metrics | _of_packing(batches)
        if self._critic is not None:
            metrics["explained_variance"] = explained_variance([s for group in held for s in group.samples])
        metrics["kl_coefficient"] = self._objective.kl
        self._objective.adapt(metrics["kl_reference"], len(counts.rewards))
        self.version += 1
        if algorithm.kl > 0 and algorithm.kl_refresh and self.version % algorithm.kl_refresh == 0:
            self._renew_reference()
        parent, self.digest = self.digest, self._weights_digest(keep or digest)
        return StepResult(
            self.version, parent, self.digest, metrics, int(self._world.max([peak_bytes(self._world.device)])[0])
        )

    def discard(self) -> None:
        self._clear()
        self._add_up()
        self._forget_gradients()

    def _clear(self) -> None:
        """Empty everything that a step collects."""
        self._tally = Tally()
        self._held: list[TrainGroup] = []  # until the batch is complete and advantages can be computed
        self._batch = self._new_batch()

    def _new_batch(self) -> Batch:
        if self._config.deterministic:
            waiting: Waiting = InOrder(self._planner, num_stages=self._num_stages)
        else:
            longest = max((task.max_tokens for task in self._config.tasks.values()), default=self._planner.budget)
            waiting = Balanced(self._planner, longest=longest, num_stages=self._num_stages)
        return Batch(waiting, self._world.device)

    def load(self, directory: Path) -> None:
        self.discard()
        head = self._restore(directory)
        self.version, self.digest = head.version, self._weights_digest()
        if self.digest != head.digest:
            raise SiteError(f"checkpoint {directory} loads as weights {self.digest}, expected {head.digest}")

    def _with_advantages(self, groups: list[TrainGroup]) -> list[TrainGroup]:
        if self._config.deterministic:
            groups = sorted(groups, key=lambda group: group.group)
        if self._critic is not None:
            self._critic.judge(groups, self._new_batch(), self._replica)
        self._objective.assign(groups)
        return groups

    def _fill(self, batch: Batch, groups: list[TrainGroup]) -> None:
        for group in groups:
            lengths = batch.add(group, self._objective.weights(group))
            batch.counts.operations += _passes(self._config) * sum(map(self._operations.forward, lengths))

    def _train(self, slots: list[Slot]) -> None:
        if slots:
            self._forward_backward(self._batch.micros(slots, self._replica))

    def _add_up(self) -> None:
        """Train the remaining samples, then sum over replicas."""
        self._train(self._batch.waiting.rest())
        self._reduce(self._batch.num_bins)

    # --- several updates ---------------------------------------------------------------------

    def _mini_batches(self, groups: list[TrainGroup]) -> list[Batch]:
        """Groups are dealt out in turn: those that finished first are not all in one update."""
        count = min(self._config.algorithm.updates, max(1, len(groups)))
        batches = [self._new_batch() for _ in range(count)]
        for first, batch in enumerate(batches):
            self._fill(batch, groups[first::count])
        return batches

    def _train_in_turn(self, batches: list[Batch]) -> dict[str, float]:
        """An update for each batch, `epochs` times, with ratios to the policy before the first."""
        micros = [batch.micros(batch.waiting.rest(), self._replica) for batch in batches]
        for of_batch in micros if self._config.algorithm.updates * self._config.algorithm.epochs > 1 else []:
            for micro, logprobs in zip(of_batch, self._chosen_logprobs(of_batch) if of_batch else [], strict=True):
                micro.stored = logprobs
        found = []
        for _ in range(self._config.algorithm.epochs):
            for batch, of_batch in zip(batches, micros):
                if of_batch:
                    self._forward_backward(of_batch)
                self._reduce(batch.num_bins)
                found.append(self._update(batch))
                if self._critic is not None:
                    found[-1] |= self._critic.train(of_batch, batch.num_bins, self._total(batch), self.version)
        return _over_updates(found)

    # --- losses and updates ------------------------------------------------------------------

    def _pack(self, samples: list[Sample], weights: list[float]) -> MicroBatch:
        return packing.pack(samples, weights, self._world.device)

    def _loss(
        self, micro: MicroBatch, new: torch.Tensor, *, entropy: torch.Tensor | None, reference: torch.Tensor | None
    ) -> torch.Tensor:
        """The loss summed over the sampled tokens; also counts it in the tally."""
        tokens = algorithms.Tokens(
            new=new,
            behaviour=micro.behaviour,
            advantages=micro.advantages,
            rewards=micro.rewards,
            samples=micro.samples,
            turns=micro.turns,
            num_samples=len(micro.lengths),
            num_turns=micro.num_turns,
            is_decoupled=self._config.algorithm.decoupled,
            stored=micro.stored,
        )
        terms = self._objective.terms(tokens, entropy=entropy, reference=reference)
        loss = (terms.loss * micro.weights).sum()
        if self._tallies:
            self._tally.add(micro, terms, version=self.version, loss=loss, new=new)
        return loss

    def _update(self, batch: Batch) -> dict[str, float]:
        """Update the weights, unless the loss or a gradient is not finite: such an update is skipped.

        A token without a log-prob makes the loss not finite, although limits keep it out of the gradients.
        """
        total = self._total(batch)
        loss = self._tally.close(self._world, total)
        lr = learning_rate(self._config.trainer, self.version, self._config.steps)
        if self._critic is not None and self.version < self._config.algorithm.critic.warmup_steps:
            self._forget_gradients()
            return {"grad_norm": 0.0, "lr": 0.0, EventKind.UPDATE_SKIPPED.value: 0.0}
        norm = self._optimize(total, lr) if np.isfinite(loss) else np.nan
        self._forget_gradients()
        is_finite = bool(np.isfinite(norm))
        if not is_finite:
            log.warning("step %d: loss or gradients are not finite; the update is skipped", self.version)
        return {
            "grad_norm": norm if is_finite else -1.0,
            "lr": lr,
            EventKind.UPDATE_SKIPPED.value: float(not is_finite),
        }

    def _total(self, batch: Batch) -> int:
        counts = batch.counts
        return self._objective.total(
            tokens=counts.tokens, samples=counts.samples, trajectories=len(counts.rewards), groups=counts.groups
        )

    # --- log-probs ---------------------------------------------------------------------------

    def logprobs(self, records: list[TokenRecord]) -> list[NDArray[np.float32]]:
        """See the contract. Every replica computes all of them."""
        out = [np.zeros(len(record), np.float32) for record in records]
        samples = [Sample("", 0, "", record, 0.0) for record in records]
        slots = replace(self._planner, ranks=1).plan([len(record) for record in records])
        bins = [sorted(members, key=lambda member: len(records[member])) for (members,) in slots]
        micros = [self._pack([samples[i] for i in members], [1.0] * len(members)) for members in bins]
        for members, micro, chosen in zip(bins, micros, self._chosen_logprobs(micros), strict=True):
            packed = np.zeros(micro.ids.shape[1], np.float32)
            packed[micro.keep.cpu().numpy() + 1] = chosen.cpu().numpy()
            for i, part in zip(members, np.split(packed, np.cumsum(micro.lengths)[:-1]), strict=True):
                out[i][:] = part
        return out


def _over_updates(found: list[dict[str, float]]) -> dict[str, float]:
    """One that was skipped makes the step count as skipped."""
    skipped = EventKind.UPDATE_SKIPPED.value
    norms = [one["grad_norm"] for one in found if not one[skipped]]
    norm = sum(norms) / len(norms) if norms else -1.0
    told = {name: sum(one[name] for one in found) / len(found) for name in ("value_loss",) if name in found[-1]}
    return {**found[-1], **told, "grad_norm": norm, skipped: max(one[skipped] for one in found)}


def _of_packing(batches: list[Batch]) -> dict[str, float]:
    waiting = [batch.waiting for batch in batches]
    efficiency = sum(one.efficiency for one in waiting) / len(waiting)
    return {"packing_efficiency": efficiency, "micro_batches": float(sum(one.num_slots for one in waiting))}


def _passes(config: RunConfig) -> int:
    """Forward passes that a sample costs, by the usual count: backward is two of them, one if only adapters learn."""
    algorithm = config.algorithm
    policy = algorithm.epochs * (2 if config.trainer.lora.rank else 3) + (algorithm.updates * algorithm.epochs > 1)
    return policy + (1 + 3 * algorithm.epochs if algorithm.needs_critic else 0)


def _use_deterministic_kernels() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0")  # Transformer Engine refuses to run without it
    torch.use_deterministic_algorithms(True)
    # This only helps find reads of uninitialized memory in torch. It costs time and changes none of our results.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
