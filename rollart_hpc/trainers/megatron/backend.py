"""The declaration of trainer `megatron`, with its options and their rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rollart_hpc.backends.declaration import Backend
from rollart_hpc.config.backends import read_options
from rollart_hpc.config.fields import key
from rollart_hpc.config.schema import RunConfig


@dataclass
class MegatronOptions:
    """Data-parallel replicas = ranks / (tensor_parallel x pipeline_parallel)."""

    tensor_parallel: int = key(1, "ranks that share every layer; keep them on one node", low=1)
    pipeline_parallel: int = key(1, "pipeline stages that the layers are divided into", low=1)
    vocabulary_multiple: int = key(
        128, "pad the vocabulary so that each tensor-parallel rank holds a multiple of this many rows", low=1
    )


def sizes_of(config: RunConfig) -> MegatronOptions:
    return read_options(MegatronOptions, config.trainer.options)


def check(config: RunConfig) -> Iterator[str]:
    sizes, ranks = sizes_of(config), config.trainer.ranks
    per_replica = sizes.tensor_parallel * sizes.pipeline_parallel
    if ranks % per_replica:
        yield (
            f"trainer.ranks: {ranks} is not a multiple of {per_replica} (trainer.options: tensor_parallel "
            f"{sizes.tensor_parallel} x pipeline_parallel {sizes.pipeline_parallel}); change one of them"
        )


def divides(config: RunConfig) -> tuple[int, int]:
    sizes = sizes_of(config)
    return sizes.tensor_parallel, sizes.pipeline_parallel


BACKEND = Backend(
    role="trainer",
    kind="megatron",
    summary="megatron-core's GPTModel",
    make="rollart_hpc.trainers.megatron.trainer:make_trainer",
    modules=("megatron",),
    extra="megatron",
    is_forkable=True,
    can=frozenset({"ranks", "activation_checkpointing", "deterministic", "critic", "kl_refresh"}),
    options=MegatronOptions,
    divides=divides,
    divided_by=("tensor_parallel", "pipeline_parallel"),
    check=check,
)
