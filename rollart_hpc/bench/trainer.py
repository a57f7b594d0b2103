"""Compares the trainer, from groups to a committed step, with a bare torch loop on the same batch.

Both stay up and take turns, so that noise of the machine affects both equally. The ratio is that of the tokens per
second of a pair; the median of all pairs is reported.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rollart_hpc.bench.pairs import Pairs, check_model
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import UserError
from rollart_hpc.types import OBSERVED, Sample, TokenRecord, TrainGroup

GROUP_SIZE = 4
SHARE_SAMPLED = 0.5

Say = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    model: Path | None = None  # None: a small one with random weights
    samples: int = 16
    sample_tokens: int = 128
    microbatch_tokens: int = 1024
    pairs: int = 5

    def __post_init__(self) -> None:
        for name, low in (("samples", GROUP_SIZE), ("sample_tokens", 4), ("microbatch_tokens", 1), ("pairs", 1)):
            if getattr(self, name) < low:
                raise UserError(f"{name} = {getattr(self, name)} is too small", f"use at least {low}")
        check_model(self.model)

    @property
    def num_tokens(self) -> int:
        return self.samples // GROUP_SIZE * GROUP_SIZE * self.sample_tokens


@dataclass
class Result(Pairs):
    settings: Settings

    def as_json(self) -> str:
        s = self.settings
        return self.json(
            bench="trainer", trainer="fsdp", model=str(s.model or "random"), tokens=s.num_tokens,
            microbatch_tokens=s.microbatch_tokens,
        )  # fmt: skip

    def as_text(self) -> str:
        return self.table("a bare torch loop")


def bench_trainer(settings: Settings, say: Say) -> Result:
    from rollart_hpc.bench.heavy.raw_trainer import Ours, Raw, make_model

    config = RunConfig()
    config.trainer.microbatch_tokens = settings.microbatch_tokens
    config.trainer.threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
    with tempfile.TemporaryDirectory(prefix="rollart-bench-") as scratch:
        model = settings.model
        if model is None:
            model = Path(scratch) / "model"
            make_model(model)
        vocabulary = _vocabulary(model)
        ours = Ours(config, model)
        raw = Raw(config, model, ours.world.device)
        result = Result(settings)
        for number in range(settings.pairs + 1):
            first, second = (ours, raw) if number % 2 else (raw, ours)
            took = {id(side): side.seconds(_batch(settings, vocabulary, number)) for side in (first, second)}
            if number == 0:  # warm-up: the set-up at the first step does not count
                continue
            result.ours.append(settings.num_tokens / took[id(ours)])
            result.raw.append(settings.num_tokens / took[id(raw)])
            say(f"  pair {number}: ours {result.ours[-1]:.0f} tokens/s, raw {result.raw[-1]:.0f} tokens/s")
        ours.close()
        return result


def _vocabulary(model: Path) -> int:
    return int(json.loads((model / "config.json").read_text())["vocab_size"])


def _batch(settings: Settings, vocabulary: int, seed: int) -> list[TrainGroup]:
    """Groups of samples; the second half of each sample's tokens was sampled."""
    rng = np.random.default_rng(seed)
    groups = [TrainGroup(number, "bench") for number in range(settings.samples // GROUP_SIZE)]
    num_observed = int(settings.sample_tokens * (1 - SHARE_SAMPLED))
    for group in groups:
        for member in range(GROUP_SIZE):
            ids = rng.integers(0, vocabulary, settings.sample_tokens).astype(np.int32)
            versions = np.where(np.arange(len(ids)) < num_observed, OBSERVED, 0).astype(np.int32)
            logprobs = np.where(versions >= 0, -np.log(vocabulary), 0.0).astype(np.float32)
            record = TokenRecord(ids, logprobs, versions)
            group.samples.append(Sample(f"{group.group}.{member}", group.group, "bench", record, float(rng.normal())))
    return groups
