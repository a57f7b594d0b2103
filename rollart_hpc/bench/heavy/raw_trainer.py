"""A bare torch training loop to compare the trainer with. No run uses it.

Forward, clipped loss, backward, clipping and AdamW on micro-batches that are already packed, with the same attention.
Everything else is left out (advantages, packing, metrics, digests).
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.trainers import algorithms, attention, packing
from rollart_hpc.trainers.flops import operations
from rollart_hpc.trainers.fsdp.trainer import FsdpTrainer
from rollart_hpc.trainers.packing import MicroBatch
from rollart_hpc.trainers.planning import Planner
from rollart_hpc.trainers.world import open_world, set_up_cpu
from rollart_hpc.types import TrainGroup


def make_model(directory: Path) -> None:
    """A model with random weights, large enough that matrix products take most of the time."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=4096, hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, head_dim=64, max_position_embeddings=4096, tie_word_embeddings=True,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)


class Ours:
    """The trainer as in a run: from groups to a committed step."""

    def __init__(self, config: RunConfig, model_dir: Path) -> None:
        set_up_cpu(config.trainer.threads)
        self.world = open_world(0, 1, config.trainer.device)
        self._trainer = FsdpTrainer(config, model_dir, self.world)

    def seconds(self, groups: list[TrainGroup]) -> float:
        start_s = time.monotonic()
        self._trainer.accumulate(groups, last=True)
        self._trainer.step()
        return time.monotonic() - start_s

    def close(self) -> None:
        self.world.close()


class Raw:
    def __init__(self, config: RunConfig, model_dir: Path, device: torch.device) -> None:
        self._config = config
        self._device = device
        self._planner = Planner(1, config.trainer.microbatch_tokens, operations(model_dir).even_tokens)
        model = AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=torch.float32, attn_implementation=attention.register(), local_files_only=True
        )
        self._model = model.eval().to(device)
        trainer = config.trainer
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), lr=trainer.lr, betas=(trainer.beta1, trainer.beta2), weight_decay=0.0
        )

    def seconds(self, groups: list[TrainGroup]) -> float:
        micros = self._packed(groups)
        total = sum(micro.num_sampled for micro in micros)
        start_s = time.monotonic()
        for micro in micros:
            (self._loss(micro) / total).backward()
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._config.trainer.grad_clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        norm.item()  # waits for a GPU
        return time.monotonic() - start_s

    def _packed(self, groups: list[TrainGroup]) -> list[MicroBatch]:
        """The micro-batches that the trainer would make of these groups."""
        algorithms.assign_advantages(groups, self._config.algorithm)
        samples = [sample for group in groups for sample in group.samples]
        slots = self._planner.plan([len(s.record) for s in samples])
        return [packing.pack([samples[i] for i in b], [1.0] * len(b), self._device) for (b,) in slots]

    def _loss(self, micro: MicroBatch) -> torch.Tensor:
        logits = self._model(
            input_ids=micro.ids,
            position_ids=micro.positions,
            use_cache=False,
            logits_to_keep=micro.keep,
            sample_lengths=micro.lengths,
        ).logits[0]
        new = torch.log_softmax(logits, -1).gather(1, micro.targets[:, None])[:, 0]
        ratio = torch.exp(new - micro.behaviour)
        return -torch.minimum(ratio * micro.advantages, ratio.clamp(0.8, 1.2) * micro.advantages).sum()
