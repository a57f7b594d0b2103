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
from rollart_hpc.trainers.checksums import Head
from rollart_hpc.trainers.contract import Keep, StepResult
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
        self._tallies = True  # False on all ranks of a replica but one
        self._num_bins = 0  # micro-batches that all replicas trained since the last step
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
        self._take(groups)
        if not last:
            self._train(self._waiting.ready())

    def step(self, keep: Keep | None = None) -> StepResult:
        self._take(self._held)
        self._add_up()
        tally, waiting = self._tally, self._waiting
        self._clear()
        total = self._objective.total(
            tokens=tally.num_tokens,
            samples=tally.num_samples,
            trajectories=len(tally.rewards),
            groups=tally.num_groups,
        )
        metrics = tally.metrics(self._world, total)
        metrics |= self._update(total, is_sound=bool(np.isfinite(metrics["loss"])))
        metrics |= {"packing_efficiency": waiting.efficiency, "micro_batches": float(waiting.num_slots)}
        self.version += 1
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
        self._samples: list[Sample] = []  # indexed as in `_waiting`
        self._weights: list[float] = []
        self._waiting = self._make_waiting()

    def _make_waiting(self) -> Waiting:
        if self._config.deterministic:
            return InOrder(self._planner, num_stages=self._num_stages)
        longest = max((task.max_tokens for task in self._config.tasks.values()), default=self._planner.budget)
        return Balanced(self._planner, longest=longest, num_stages=self._num_stages)

    def load(self, directory: Path) -> None:
        self.discard()
        head = self._restore(directory)
        self.version, self.digest = head.version, self._weights_digest()
        if self.digest != head.digest:
            raise SiteError(f"checkpoint {directory} loads as weights {self.digest}, expected {head.digest}")

    def _take(self, groups: list[TrainGroup]) -> None:
        """Compute advantages, count samples and tokens. A sample without sampled tokens can't be trained: skip it.

        Samples that shaping leaves out are counted: what is left must not weigh more for it.
        """
        if self._config.deterministic:
            groups = sorted(groups, key=lambda group: group.group)
        self._objective.assign(groups)
        for group in groups:
            self._tally.num_groups += 1
            self._tally.rewards += algorithms.trajectory_rewards(group.samples).values()
            counts = [packing.num_trainable(sample) for sample in group.samples]
            self._tally.num_samples += sum(count > 0 for count in counts)
            self._tally.num_tokens += sum(counts)
            self._tally.num_left_out += sum(c for c, sample in zip(counts, group.samples) if sample.is_left_out)
            weighed = zip(group.samples, self._objective.weights(group), counts, strict=True)
            chosen = [(sample, weight) for sample, weight, count in weighed if count and not sample.is_left_out]
            lengths = [len(sample.record) for sample, _ in chosen]
            self._waiting.add(lengths)
            self._tally.num_trained += sum(lengths)
            self._tally.operations += _passes(self._config) * sum(map(self._operations.forward, lengths))
            self._samples += [sample for sample, _ in chosen]
            self._weights += [weight for _, weight in chosen]

    def _train(self, slots: list[Slot]) -> None:
        """Train this replica's micro-batches. Every replica gets the same number of them."""
        if slots:
            self._num_bins += sum(bool(members) for slot in slots for members in slot)
            bins = [self._by_length(slot[self._replica]) for slot in slots]
            micros = [self._pack([self._samples[i] for i in b], [self._weights[i] for i in b]) for b in bins]
            self._forward_backward(micros)

    def _by_length(self, members: list[int]) -> list[int]:
        """Neighbours of one length share an attention call."""
        return sorted(members, key=lambda member: len(self._samples[member].record))

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
        )
        terms = self._objective.terms(tokens, entropy=entropy, reference=reference)
        loss = (terms.loss * micro.weights).sum()
        if self._tallies:
            self._tally.add(micro, terms, version=self.version, loss=loss, new=new)
        return loss

    def _add_up(self) -> None:
        """Train the remaining samples, then sum over replicas."""
        self._train(self._waiting.rest())
        num_bins, self._num_bins = self._num_bins, 0
        self._reduce(num_bins)

    def _update(self, total: int, *, is_sound: bool) -> dict[str, float]:
        """Update the weights, unless the loss or a gradient is not finite: such an update is skipped.

        A token without a log-prob makes the loss not finite, although limits keep it out of the gradients.
        """
        lr = learning_rate(self._config.trainer, self.version, self._config.steps)
        norm = self._optimize(total, lr) if is_sound else np.nan
        self._forget_gradients()
        is_finite = bool(np.isfinite(norm))
        if not is_finite:
            log.warning("step %d: loss or gradients are not finite; the update is skipped", self.version)
        return {
            "grad_norm": norm if is_finite else -1.0,
            "lr": lr,
            EventKind.UPDATE_SKIPPED.value: float(not is_finite),
        }

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


def _passes(config: RunConfig) -> int:
    """Forward passes that a sample costs, by the usual count: backward is two of them, one if only adapters learn."""
    return 2 if config.trainer.lora.rank else 3


def _use_deterministic_kernels() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0")  # Transformer Engine refuses to run without it
    torch.use_deterministic_algorithms(True)
    # This only helps find reads of uninitialized memory in torch. It costs time and changes none of our results.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
