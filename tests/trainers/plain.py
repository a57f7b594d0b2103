"""A training step as plainly as it can be written: one sample at a time, no packing, no sharding, eager attention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, Qwen3Config

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.types import OBSERVED, Sample, TokenRecord, TrainGroup

VOCABULARY = 64
_CLIPS = ((-1, "clip_low"), (1, "clip_high"))


def make_model(
    directory: Path, *, family: type[PretrainedConfig] = Qwen3Config, tied: bool = True, **changes: object
) -> Path:
    torch.manual_seed(1)
    shape = {
        "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    }  # fmt: skip
    config = family(**shape | {"tie_word_embeddings": tied} | changes)
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return directory


def make_config(**changes: object) -> RunConfig:
    """`changes` by dotted path, dots written as two underscores."""
    config = RunConfig(steps=20)
    config.trainer.microbatch_tokens = 64
    config.trainer.device = "cpu"
    for path, value in changes.items():
        *sections, name = path.split("__")
        target: object = config
        for section in sections:
            target = getattr(target, section)
        if isinstance(target, dict):
            target[name] = value
            continue
        assert hasattr(target, name), path
        setattr(target, name, value)
    return config


def make_record(
    rng: np.random.Generator, num_tokens: int, version: int = 0, vocabulary: int = VOCABULARY
) -> TokenRecord:
    """Observed and sampled stretches in turn, beginning with an observed one."""
    versions = np.full(num_tokens, OBSERVED, np.int32)
    at, is_sampled = int(rng.integers(1, 4)), True
    while at < num_tokens:
        length = int(rng.integers(1, 6))
        if is_sampled:
            versions[at : at + length] = version
        at, is_sampled = at + length, not is_sampled
    logprobs = np.where(versions >= 0, -rng.uniform(0.5, 6.0, num_tokens), 0.0).astype(np.float32)
    return TokenRecord(rng.integers(0, vocabulary, num_tokens).astype(np.int32), logprobs, versions)


def make_groups(
    seed: int, num_groups: int = 4, group_size: int = 3, longest: int = 40, vocabulary: int = VOCABULARY
) -> list[TrainGroup]:
    """Every third trajectory has two samples."""
    rng = np.random.default_rng(seed)
    groups = []
    for g in range(num_groups):
        group = TrainGroup(g, "task")
        for member in range(group_size):
            reward = float(rng.normal())
            for _ in range(2 if member % 3 == 2 else 1):
                record = make_record(rng, int(rng.integers(5, longest)), vocabulary=vocabulary)
                group.samples.append(Sample(f"{g}.{member}", g, "task", record, reward))
        groups.append(group)
    return groups


def learned(metrics: dict[str, float]) -> dict[str, float]:
    """Without what depends on how the samples were packed."""
    return {name: value for name, value in metrics.items() if name not in ("packing_efficiency", "micro_batches")}


class PlainTrainer:
    def __init__(self, config: RunConfig, model_dir: Path) -> None:
        self.config = config
        self.model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
        self.reference = AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=torch.float32, attn_implementation="eager"
        )
        trainer = config.trainer
        self.stored: dict[int, torch.Tensor] = {}  # log-probs before the first of several updates, by id of the sample
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=trainer.lr, betas=(trainer.beta1, trainer.beta2), weight_decay=0.0
        )

    def logprobs(self, model: torch.nn.Module, record: TokenRecord) -> torch.Tensor:
        """[tokens - 1, vocabulary]: row t is the distribution of token t + 1."""
        logits = model(input_ids=torch.from_numpy(record.ids.astype(np.int64))[None]).logits[0, :-1]
        return torch.log_softmax(logits / self.config.flow.temperature, -1)

    def sample_losses(self, sample: Sample, advantage: float) -> torch.Tensor:
        """One loss per sampled token."""
        algorithm = self.config.algorithm
        record = sample.record
        places = np.flatnonzero(record.versions[1:] >= 0)
        rows = self.logprobs(self.model, record)[places]
        targets = torch.from_numpy(record.ids[places + 1].astype(np.int64))
        new = rows[torch.arange(len(places)), targets]
        old = torch.from_numpy(record.logprobs[places + 1])
        losses = []
        for i in range(len(places)):
            if algorithm.decoupled:
                proximal = self.stored.get(id(sample), new.detach())[i]
                ratio, weight = torch.exp(new[i] - proximal), torch.exp(proximal - old[i]).clamp(max=2.0)
            else:
                ratio, weight = torch.exp(new[i] - old[i]), 1.0
            low, high = (1 + sign * algorithm.loss_params.get(name, 0.2) for sign, name in _CLIPS)
            surrogate = torch.min(ratio * advantage, torch.clamp(ratio, low, high) * advantage)
            loss = -surrogate if advantage >= 0 else torch.clamp(-surrogate, max=-3.0 * advantage)
            losses.append(loss * weight)
        total = torch.stack(losses)
        if algorithm.entropy:
            total = total - algorithm.entropy * -(rows.exp() * rows).sum(-1)
        if algorithm.kl:
            with torch.no_grad():
                other = self.logprobs(self.reference, record)[places][torch.arange(len(places)), targets]
            total = total + algorithm.kl * (torch.exp(other - new) - (other - new) - 1)
        return total

    def loss(self, groups: list[TrainGroup]) -> torch.Tensor:
        pieces = []
        everything = {s.trajectory: s.reward for g in groups for s in g.samples}
        for group in groups:
            own = {s.trajectory: s.reward for s in group.samples}
            for sample in group.samples:
                if self.config.algorithm.estimator == "reinforce":
                    advantage = sample.reward - np.mean(list(everything.values()))
                else:
                    rewards = np.array(list(own.values()))
                    advantage = (sample.reward - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
                if (sample.record.versions[1:] >= 0).any():
                    pieces.append(self.sample_losses(sample, float(advantage)))
        match self.config.algorithm.aggregation:
            case "token_mean":
                return torch.cat(pieces).mean()
            case "sample_mean":
                return torch.stack([p.mean() for p in pieces]).mean()
            case "sample_sum":
                return torch.stack([p.sum() for p in pieces]).mean()
        raise AssertionError

    def gradients(self, groups: list[TrainGroup]) -> tuple[float, dict[str, torch.Tensor]]:
        self.model.zero_grad()
        loss = self.loss(groups)
        loss.backward()
        return loss.item(), {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}

    def store(self, groups: list[TrainGroup]) -> None:
        for sample in (sample for group in groups for sample in group.samples):
            places = np.flatnonzero(sample.record.versions[1:] >= 0)
            targets = torch.from_numpy(sample.record.ids[places + 1].astype(np.int64))
            with torch.no_grad():
                self.stored[id(sample)] = self.logprobs(self.model, sample.record)[places, targets]

    def step(self, groups: list[TrainGroup]) -> float:
        loss, _ = self.gradients(groups)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.trainer.grad_clip)
        self.optimizer.step()
        return loss
