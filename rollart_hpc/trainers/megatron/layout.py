"""The place of every weight, as a table without tensors. Owns names, shapes and how several weights become one.

megatron stores the rows of a query group together (q q k v | q q k v), and also a rank's rows of gate and up. Both are
the same operation: sources are cut into `groups`, and the pieces of a group are concatenated.

    joined[group] = source_0[group], source_1[group], ...

The joined tensor is then split over tensor parallel ranks along `split`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from rollart_hpc.trainers.megatron.families import Family


@dataclass(frozen=True)
class Shape:
    """How a model is divided over ranks."""

    tensor: int
    pipeline: int
    vocabulary: int  # padded, so that every rank has the same number of rows
    has_fused_norms: bool  # Transformer Engine keeps a norm's weight with the linear layer after it


@dataclass(frozen=True)
class Weight:
    name: str  # in the stage's GPTModel
    stage: int
    sources: tuple[str, ...]  # Hugging Face names
    rows: tuple[int, ...]  # of each source
    columns: int | None = None  # None: a vector
    groups: int = 1
    split: int | None = None
    padding: int = 0  # rows that are in no source
    is_copy: bool = False  # the same weight is also elsewhere: loaded, but never exported

    @property
    def joined_shape(self) -> tuple[int, ...]:
        num_rows = sum(self.rows) + self.padding
        return (num_rows,) if self.columns is None else (num_rows, self.columns)

    def shard_shape(self, tensor: int) -> tuple[int, ...]:
        shape = list(self.joined_shape)
        if self.split is not None:
            shape[self.split] //= tensor
        return tuple(shape)

    def join(self, sources: list[torch.Tensor]) -> torch.Tensor:
        pieces = [source.reshape(self.groups, -1, *source.shape[1:]) for source in sources]
        joined = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)
        joined = joined.flatten(0, 1)
        return joined if not self.padding else torch.cat([joined, joined.new_zeros(self.padding, *joined.shape[1:])])

    def part(self, joined: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """The inverse of `join`, with Hugging Face names."""
        grouped = joined[: sum(self.rows)].reshape(self.groups, -1, *joined.shape[1:])
        pieces = grouped.split([rows // self.groups for rows in self.rows], dim=1)
        for name, rows, piece in zip(self.sources, self.rows, pieces, strict=True):
            yield name, piece.reshape(rows, *joined.shape[1:])

    def shard(self, joined: torch.Tensor, rank: int, tensor: int) -> torch.Tensor:
        return joined if self.split is None else joined.chunk(tensor, dim=self.split)[rank]


def weights(family: Family, shape: Shape) -> Iterator[Weight]:
    """All weights of the model, in transformers' order, except that biases follow the three weights q, k, v."""
    last = shape.pipeline - 1
    hidden, embed = family.hidden_size, "model.embed_tokens.weight"
    vocabulary = {"rows": (family.vocabulary,), "columns": hidden, "split": 0}
    padding = shape.vocabulary - family.vocabulary
    yield Weight("embedding.word_embeddings.weight", 0, (embed,), **vocabulary, padding=padding)  # type: ignore[arg-type]
    for number in range(family.num_layers):
        yield from _layer(family, shape, number)
    yield Weight("decoder.final_layernorm.weight", last, ("model.norm.weight",), (hidden,))
    if not family.is_tied or last:
        source = embed if family.is_tied else "lm_head.weight"
        head = {**vocabulary, "padding": padding, "is_copy": family.is_tied}
        yield Weight("output_layer.weight", last, (source,), **head)  # type: ignore[arg-type]


def _layer(family: Family, shape: Shape, number: int) -> Iterator[Weight]:
    per_stage = family.num_layers // shape.pipeline
    stage, local = divmod(number, per_stage)
    hidden, ffn, kv_heads = family.hidden_size, family.ffn_size, family.num_kv_heads
    query, key = family.num_heads * family.head_size, kv_heads * family.head_size

    def one(
        name: str, sources: tuple[str, ...], rows: tuple[int, ...], columns: int | None = None, **how: int
    ) -> Weight:
        theirs = tuple(f"model.layers.{number}.{source}" for source in sources)
        return Weight(f"decoder.layers.{local}.{name}", stage, theirs, rows, columns, **how)  # type: ignore[arg-type]

    fused = shape.has_fused_norms
    first_norm = "self_attention.linear_qkv.layer_norm_weight" if fused else "input_layernorm.weight"
    second_norm = "mlp.linear_fc1.layer_norm_weight" if fused else "pre_mlp_layernorm.weight"
    for kind, columns in (("weight", hidden), ("bias", None)):
        if kind == "weight" or family.has_qkv_bias:
            names = tuple(f"self_attn.{part}_proj.{kind}" for part in "qkv")
            joined = f"self_attention.linear_qkv.{kind}"
            yield one(joined, names, (query, key, key), columns, groups=kv_heads, split=0)
    yield one("self_attention.linear_proj.weight", ("self_attn.o_proj.weight",), (hidden,), query, split=1)
    if family.has_qk_norm:
        for part in "qk":
            name = f"self_attention.{part}_layernorm.weight"
            yield one(name, (f"self_attn.{part}_norm.weight",), (family.head_size,))
    gated = ("mlp.gate_proj.weight", "mlp.up_proj.weight")
    yield one("mlp.linear_fc1.weight", gated, (ffn, ffn), hidden, groups=shape.tensor, split=0)
    yield one("mlp.linear_fc2.weight", ("mlp.down_proj.weight",), (hidden,), ffn, split=1)
    yield one(first_norm, ("input_layernorm.weight",), (hidden,))
    yield one(second_norm, ("post_attention_layernorm.weight",), (hidden,))
