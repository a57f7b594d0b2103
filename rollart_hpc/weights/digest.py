"""The hash of a set of weights. Owns the definition of "the same weights"; does no I/O.

The digest covers names, dtypes, shapes and bytes, in the order given. The ledger chains steps by this digest, so
trainer and store must both use this module.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import xxhash


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor in C order; no copy if it is contiguous and on the CPU."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Digest:
    """Incremental form of `digest`, for callers that hold one tensor at a time."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()

    def add(self, name: str, tensor: torch.Tensor, raw: memoryview | None = None) -> None:
        """`raw`: the tensor's bytes, if the caller already has them; saves a copy."""
        header = f"{name}\0{dtype_name(tensor.dtype)}\0{'x'.join(map(str, tensor.shape))}\0"
        self._hash.update(header.encode())
        self._hash.update(raw_bytes(tensor) if raw is None else raw)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def digest(named: Iterable[tuple[str, torch.Tensor]]) -> str:
    whole = Digest()
    for name, tensor in named:
        whole.add(name, tensor)
    return whole.hexdigest()
