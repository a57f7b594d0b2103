"""Bytes that trainer ranks, engines and relays need, from the shape of the model. Pure: knows no site, loads nothing.

    trainer   weights, gradients, optimizer    a shard each, or the part that tensor and pipeline ranks divide
              gathered                         blocks that are whole while they are computed, and their gradients
              activations                      inputs of blocks and, without checkpointing, everything inside
              scores                           a slice of logits (`trainers.slices`)
    engine    weights, workspace, KV           KV gets what is left of its share of the GPU, or a fixed number of slots
    relay     three versions of the weights    in shared memory

Every token counts as sampled: an upper bound. A test compares the trainer's sum with torch's own accounting
(FakeTensorMode) of the trainer `fsdp`; the others are arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rollart_hpc.config.model_shape import ModelShape

VERSIONS = 3  # of the weights, in a relay
ITEM_BYTES = {"float32": 4, "bfloat16": 2}
SLICE_NUMBERS = 1 << 27  # as in `trainers.slices`, which imports torch
_SLICE_COPIES = 4  # logits of a slice, their softmax and the gradients of both
_FLOAT32 = 4
_ENGINE_RUNTIME = 2 * 2**30  # assumed: CUDA's context, NCCL's buffers and captured graphs of an engine's worker

Parts = dict[str, float]


@dataclass(frozen=True)
class TrainerSize:
    """What decides the memory of one trainer rank."""

    ranks: int
    tokens: int  # of the longest micro-batch
    item: int  # bytes of a number in forward and backward
    checkpointing: bool = False
    adapter_rank: int = 0  # of LoRA; 0: all weights are trained
    has_reference: bool = False
    has_critic: bool = False  # all of its weights are trained
    sums_whole: bool = False  # gradients are summed before they are sharded
    tensor: int = 1
    pipeline: int = 1
    shards: int = 0  # ranks that share a copy of the weights, which are gathered block by block; 0: they are divided
    on_host: bool = False  # shards, gradients and optimizer state


@dataclass(frozen=True)
class EngineSize:
    """What decides the memory of one GPU of an engine."""

    tensor: int
    item: int
    prefill_tokens: int
    running: int


def trainer_parts(shape: ModelShape, size: TrainerSize) -> Parts:
    """Bytes of one rank at the worst moment of a step."""
    return _sharded(shape, size) if size.shards else _divided(shape, size)


def _sharded(shape: ModelShape, size: TrainerSize) -> Parts:
    own = shape.parameters / size.shards
    trained = _adapters(shape, size.adapter_rank) / size.shards if size.adapter_rank else own
    is_plain = size.ranks == 1 and size.item == _FLOAT32 and not size.on_host  # nothing to shard, nothing to gather
    parts: Parts = {
        "weights": _FLOAT32 * own * (2 if size.has_reference else 1),
        "gradients": _FLOAT32 * trained * (size.shards if size.sums_whole and not is_plain else 1),
        "optimizer": 2 * _FLOAT32 * trained,
    }
    if size.has_critic:
        parts["critic"] = _FLOAT32 * own * (3 + (size.shards if size.sums_whole and not is_plain else 1))
    if size.on_host:
        parts = dict.fromkeys(parts, 0.0)
    kept = _kept(shape, size)
    moments: list[Parts] = [
        {"gathered": gathered, "activations": kept[name] + more, "scores": scores}
        for name, (gathered, more, scores) in _moments(shape, size, is_plain=is_plain).items()
    ]
    fullest: Parts = max(moments, key=_total)
    return {**parts, **fullest}


def _total(parts: Parts) -> float:
    return sum(parts.values())


def _moments(shape: ModelShape, size: TrainerSize, *, is_plain: bool) -> dict[str, tuple[float, float, float]]:
    """Gathered weights and their gradients, activations beside the kept ones, scores: in the backward of a block and
    of the head, and when the root's gradients are reduced."""
    item, table, layer = size.item, shape.table_parameters, shape.layer_parameters
    head = shape.vocabulary * shape.hidden
    rows = min(size.tokens, max(1, SLICE_NUMBERS // shape.vocabulary))
    trains_all = 0 if size.adapter_rank else 1
    scores = _SLICE_COPIES * _FLOAT32 * rows * shape.vocabulary + trains_all * (_FLOAT32 + item) * head
    stream = size.tokens * item * shape.hidden
    inside = stream + size.tokens * item * 2 * shape.ffn
    if is_plain:
        return {"block": (0.0, inside, 0.0), "head": (0.0, 2 * stream, scores)}
    in_block = item * (table + 2 * layer) + trains_all * (item * table + (item + _FLOAT32) * layer)
    at_end = item * table + trains_all * (item + _FLOAT32) * table
    return {
        "block": (in_block, inside, 0.0),
        "head": (item * (table + layer), 2 * stream, scores),
        "end": (at_end, 0.0, 0.0),
    }


def _kept(shape: ModelShape, size: TrainerSize) -> Parts:
    """Activations that live at these moments."""
    inside = size.tokens * _inside(shape, size.item)
    inputs = size.tokens * shape.layers * size.item * shape.hidden
    if not size.checkpointing:
        return {"block": shape.layers * inside, "head": shape.layers * inside, "end": 0.0}
    return {"block": inputs + inside, "head": inputs, "end": 0.0}


def _inside(shape: ModelShape, item: int) -> float:
    """Bytes per token that one block keeps for its backward: norms in float32, attention by flash kernels."""
    hidden, queries, keys = shape.hidden, shape.queries, shape.keys
    copies = _FLOAT32 if item < _FLOAT32 else 0  # a norm computes in float32: another copy of its input
    norms = 2 * hidden * (copies + 2 * item)
    if shape.has_qk_norm:
        norms += (queries + keys) * (copies + item)
    attention = item * (2 * queries + 2 * keys) + _FLOAT32 * shape.heads
    return norms + attention + 4 * item * shape.ffn + item * hidden


def _divided(shape: ModelShape, size: TrainerSize) -> Parts:
    """Tensor and pipeline ranks divide the model; replicas share the optimizer's states."""
    parts = size.tensor * size.pipeline
    own = shape.layers * shape.layer_parameters / parts + shape.table_parameters / size.tensor
    replicas = max(1, size.ranks // parts)
    masters = _FLOAT32 if size.item < _FLOAT32 else 0
    layers = math.ceil(shape.layers / size.pipeline)
    in_flight = size.pipeline  # micro-batches whose activations the first stage holds
    inside = size.tokens * _inside(shape, size.item) / size.tensor
    inputs = size.tokens * layers * size.item * shape.hidden if size.checkpointing else layers * inside
    rows = min(size.tokens, max(1, SLICE_NUMBERS // (shape.vocabulary // size.tensor)))
    return {
        "weights": size.item * own * (2 if size.has_reference else 1),
        "gradients": _FLOAT32 * own,
        "optimizer": (2 * _FLOAT32 + masters) * own / replicas,
        "gathered": 0.0,
        "activations": inputs * in_flight + (inside if size.checkpointing else 0.0),
        "scores": _SLICE_COPIES * _FLOAT32 * rows * shape.vocabulary / size.tensor,
    }


def _adapters(shape: ModelShape, rank: int) -> int:
    """Numbers of adapters on every linear layer of every block."""
    hidden, queries, keys, ffn = shape.hidden, shape.queries, shape.keys, shape.ffn
    widths = 2 * (hidden + queries) + 2 * (hidden + keys) + 3 * (hidden + ffn)
    return rank * widths * shape.layers


def engine_parts(shape: ModelShape, size: EngineSize) -> Parts:
    """Bytes of one GPU, without KV."""
    widest = max(2 * shape.ffn, shape.queries + 2 * shape.keys) / size.tensor + 2 * shape.hidden
    logits = size.running * shape.vocabulary * _FLOAT32 * 2
    return {
        "weights": size.item * shape.parameters / size.tensor,
        "workspace": _ENGINE_RUNTIME + size.prefill_tokens * widest * size.item + logits,
    }


def kv_token_bytes(shape: ModelShape, size: EngineSize) -> float:
    """Of one token on one GPU. Ranks beyond the number of KV heads hold copies."""
    heads = math.ceil(shape.kv_heads / size.tensor)
    return 2 * shape.layers * heads * shape.head_dim * size.item


def kv_capacity(shape: ModelShape, size: EngineSize, room: float) -> int:
    """Tokens of KV that fit into `room` bytes of each GPU, beside the weights and the workspace."""
    return max(0, int((room - _total(engine_parts(shape, size))) / kv_token_bytes(shape, size)))


def relay_bytes(parameters: float, dtype: str) -> float:
    return VERSIONS * ITEM_BYTES[dtype] * parameters
