"""Keys and values of all trajectories on one engine, a row each. Owns the memory; knows nothing of requests.

One tensor [layer, key/value, row, head, position, dim]. The rows of a forward are adjacent, at the front (the
engine moves them there once per turn), so attention reads them as a view. Gathering scattered rows at every step
would cost several times the attention itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class KvShape:
    num_layers: int
    num_rows: int
    num_heads: int
    max_len: int
    head_dim: int

    @classmethod
    def of(cls, config: Any, num_rows: int, max_len: int) -> KvShape:
        """From the transformers config of a decoder."""
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        return cls(config.num_hidden_layers, num_rows, kv_heads, max_len, head_dim)


class KvCache:
    def __init__(self, shape: KvShape, device: torch.device, dtype: torch.dtype) -> None:
        sizes = (shape.num_layers, 2, shape.num_rows, shape.num_heads, shape.max_len, shape.head_dim)
        # Zeros, not empty: masked positions are multiplied by 0, and 0 * NaN is NaN.
        # On a CPU only the pages that are written to take memory.
        self.data = torch.zeros(sizes, device=device, dtype=dtype)
        self.shape = shape

    def write(
        self, layer: int, rows: torch.Tensor, positions: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> None:
        """Write token t of `key` and `value` [head, token, dim] to (rows[t], positions[t])."""
        self.data[layer, 0][rows, :, positions] = key.transpose(0, 1)
        self.data[layer, 1][rows, :, positions] = value.transpose(0, 1)

    def read(self, layer: int, rows: slice | torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys, values [row, head, position, dim]; a view for a slice of rows."""
        keys, values = self.data[layer, 0, :, :, :length], self.data[layer, 1, :, :, :length]
        if isinstance(rows, slice):
            return keys[rows], values[rows]
        return keys.index_select(0, rows), values.index_select(0, rows)

    def copy(self, source: int, target: int, length: int) -> None:
        self.data[:, :, target, :, :length] = self.data[:, :, source, :, :length]

    def exchange(self, a: int, b: int, length_a: int, length_b: int) -> None:
        """Swap the first `length_a` positions of row a with the first `length_b` of row b."""
        if length_a < length_b:
            a, b, length_a, length_b = b, a, length_b, length_a
        longer, shorter = self.data[:, :, a, :, :length_a], self.data[:, :, b, :, :length_a]
        kept = shorter[..., :length_b, :].clone() if length_b else None
        shorter.copy_(longer)
        if kept is not None:
            longer[..., :length_b, :].copy_(kept)
