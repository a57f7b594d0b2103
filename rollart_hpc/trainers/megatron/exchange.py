"""Reads weights from a Hugging Face directory and gathers them on rank 0. `layout` says where each weight is.

Both work weight by weight: beside the model, no rank holds more than one joined weight and its sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from rollart_hpc.errors import SiteError
from rollart_hpc.trainers.megatron.layout import Weight
from rollart_hpc.trainers.tensor_files import TensorFiles

Parameters = dict[str, torch.nn.Parameter]


class Coordinates(NamedTuple):
    """The position of this rank among all ranks."""

    rank: int
    tensor_rank: int
    tensor_ranks: tuple[int, ...]  # world ranks of its tensor-parallel group
    tensor_group: dist.ProcessGroup
    stage: int
    replica: int
    heads: tuple[int, ...]  # world rank of the first rank of each stage in replica 0


def read_into(parameters: Parameters, table: list[Weight], coordinates: Coordinates, directory: Path) -> None:
    """Load the shards of this stage."""
    files = TensorFiles(directory)
    wanted = {weight.name: weight for weight in table if weight.stage == coordinates.stage}
    assert wanted.keys() == parameters.keys(), f"parameters differ: {sorted(wanted.keys() ^ parameters.keys())}"
    tensor = len(coordinates.tensor_ranks)
    with torch.no_grad():
        for name, weight in wanted.items():
            joined = weight.join([files.get(source) for source in weight.sources])
            if tuple(joined.shape) != weight.joined_shape:
                what = f"{directory}: {', '.join(weight.sources)} have shape {tuple(joined.shape)}"
                raise SiteError(f"{what}, expected {weight.joined_shape}", "check that config.json fits the weights")
            parameters[name].copy_(weight.shard(joined, coordinates.tensor_rank, tensor))


def gathered(
    parameters: Parameters, table: list[Weight], coordinates: Coordinates
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields Hugging Face tensors, on rank 0 only. Every rank must iterate."""
    device, dtype = _kind(parameters)
    for weight in table:
        if weight.is_copy or coordinates.replica:
            continue
        head = coordinates.heads[weight.stage]
        joined = None
        if coordinates.stage == weight.stage:
            joined = _unshard(parameters[weight.name].detach(), weight, coordinates)
        if head != 0:  # megatron numbers ranks by stage: rank 0 is in the first one
            if coordinates.rank == head:
                assert joined is not None
                dist.send(joined.contiguous(), dst=0)
            elif coordinates.rank == 0:
                joined = torch.empty(weight.joined_shape, device=device, dtype=dtype)
                dist.recv(joined, src=head)
        if coordinates.rank == 0:
            assert joined is not None
            yield from weight.part(joined)


def _unshard(shard: torch.Tensor, weight: Weight, coordinates: Coordinates) -> torch.Tensor | None:
    """Gathers the joined tensor on the first rank of the tensor-parallel group."""
    if weight.split is None or len(coordinates.tensor_ranks) == 1:
        return shard
    joined, shards = None, None
    if coordinates.tensor_rank == 0:
        joined = shard.new_empty(weight.joined_shape)
        # Rows can be received directly into the joined tensor; columns need a separate buffer.
        shards = list(joined.chunk(len(coordinates.tensor_ranks))) if weight.split == 0 else None
        shards = shards or [torch.empty_like(shard) for _ in coordinates.tensor_ranks]
    dist.gather(shard.contiguous(), shards, dst=coordinates.tensor_ranks[0], group=coordinates.tensor_group)
    if joined is not None and shards is not None and weight.split:
        torch.cat(shards, dim=weight.split, out=joined)
    return joined


def _kind(parameters: Parameters) -> tuple[torch.device, torch.dtype]:
    first = next(iter(parameters.values()))
    return first.device, first.dtype
