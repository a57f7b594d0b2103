"""The declaration of trainer `fsdp`, with its options and their rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rollart_hpc.backends.declaration import Backend, Shards
from rollart_hpc.config.backends import read_options
from rollart_hpc.config.fields import key
from rollart_hpc.config.schema import RunConfig


@dataclass
class FsdpOptions:
    """Where shards of the weights are."""

    shard_ranks: int = key(
        0,
        "ranks that share one copy of the weights, e.g. those of a node; every further group of as many has a copy of "
        "its own (HSDP): less traffic between nodes, more memory; 0 = all ranks",
        low=0,
    )
    cpu_offload: bool = key(
        False, "keep weights, gradients and optimizer state in host memory, and update them there; slower"
    )


def options_of(config: RunConfig) -> FsdpOptions:
    return read_options(FsdpOptions, config.trainer.options)


def shards(config: RunConfig) -> Shards:
    options = options_of(config)
    return Shards(options.shard_ranks or config.trainer.ranks, on_host=options.cpu_offload)


def check(config: RunConfig) -> Iterator[str]:
    ranks, per_copy = config.trainer.ranks, shards(config).ranks
    if ranks % per_copy:
        yield (
            f"trainer.options.shard_ranks: {per_copy} does not divide trainer.ranks ({ranks}): every group of ranks "
            "holds a whole copy; change one of them"
        )


BACKEND = Backend(
    role="trainer",
    kind="fsdp",
    summary="FSDP2 over a transformers model",
    make="rollart_hpc.trainers.fsdp.trainer:FsdpTrainer",
    modules=("torch", "transformers", "safetensors"),
    extra="train",
    imports=("rollart_hpc.trainers.fsdp.trainer",),
    is_forkable=True,
    options=FsdpOptions,
    shards=shards,
    check=check,
    can=frozenset({"ranks", "lora", "activation_checkpointing", "deterministic", "critic", "kl_refresh"}),
)
