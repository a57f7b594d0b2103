"""Ranks of a trainer as processes of a check, and what they train on. Forked before anything touches a GPU."""

from __future__ import annotations

import multiprocessing
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.trainers.world import World, open_world, set_up_cpu
from rollart_hpc.types import OBSERVED, Sample, TokenRecord, TrainGroup

VOCABULARY = 512
LIMIT_S = 300.0
Part = Callable[[World], Any]


def make_model(directory: Path) -> Path:
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2, head_dim=32,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, tie_word_embeddings=True,
        initializer_range=0.1, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    return directory


def make_config(device: str, kind: str = "fsdp", dtype: str = "float32", **options: Any) -> RunConfig:
    config = RunConfig(steps=10)
    config.trainer.kind, config.trainer.device, config.trainer.dtype = kind, device, dtype
    config.trainer.options, config.trainer.microbatch_tokens = options, 128
    return config


def make_groups(seed: int) -> list[TrainGroup]:
    rng = np.random.default_rng(seed)
    groups = []
    for number in range(4):
        group = TrainGroup(number, "task")
        for member in range(4):
            tokens = int(rng.integers(20, 100))
            versions = np.where(np.arange(tokens) < 8, OBSERVED, 0).astype(np.int32)
            logprobs = np.where(versions >= 0, -rng.uniform(4.0, 7.0, tokens), 0.0).astype(np.float32)
            record = TokenRecord(rng.integers(0, VOCABULARY, tokens).astype(np.int32), logprobs, versions)
            group.samples.append(Sample(f"{number}.{member}", number, "task", record, float(rng.normal())))
        groups.append(group)
    return groups


def run_ranks(count: int, device: str, scratch: Path, part: Part) -> list[Any]:
    """What `part` returns on each rank. Raises with the first rank's traceback."""
    fork = multiprocessing.get_context("fork")
    name = f"ranks-{len(list(scratch.glob('ranks-*')))}"
    (scratch / name).mkdir()
    jobs = [fork.Process(target=_rank, args=(rank, count, device, scratch / name, part)) for rank in range(count)]
    try:
        for job in jobs:
            job.start()
        for job in jobs:
            job.join(LIMIT_S)
    finally:
        for job in jobs:
            job.kill()
    return [_result(scratch / name / str(rank)) for rank in range(count)]


def _rank(rank: int, count: int, device: str, directory: Path, part: Part) -> None:
    found: tuple[Any, str] = (None, "")
    try:
        set_up_cpu(1)
        world = open_world(rank, count, device, directory / "rendezvous", local_rank=rank)
        found = part(world), ""
        world.close()
    except Exception:
        found = None, traceback.format_exc()
    (directory / str(rank)).write_bytes(pickle.dumps(found))  # read by the process that made this one


def _result(path: Path) -> Any:
    if not path.exists():
        raise RuntimeError(f"rank {path.name} did not end within {LIMIT_S:g} s, or was killed")
    found, problem = pickle.loads(path.read_bytes())
    if problem:
        raise RuntimeError(f"rank {path.name}: {problem.strip().splitlines()[-1]}\n{problem}")
    return found
