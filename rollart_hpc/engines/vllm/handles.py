"""KV passed between engines: the handle that travels with a split turn, and the names of its files.

A handle names the weights that made the KV. An engine with other weights refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from rollart_hpc.types import WeightsId


class Handle(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    attempt: int
    version: int
    params: dict[str, Any]  # vLLM's kv_transfer_params for the engine that decodes

    @property
    def weights_id(self) -> WeightsId:
        return WeightsId(self.attempt, self.version)

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()


def usable_params(kv: str, weights_id: WeightsId | None) -> dict[str, Any] | None:
    """The handle's parameters if these weights made its KV. None: this engine must prefill the prompt."""
    try:
        handle = msgspec.json.decode(kv, type=Handle)
    except msgspec.DecodeError:
        return None
    return dict(handle.params) if handle.weights_id == weights_id else None


def kv_file(directory: Path, key: str, rank: int) -> Path:
    """The prefilling engine writes one file per worker (rank)."""
    return directory / f"{key}.{rank}.safetensors"


def remove_kv(directory: Path, keys: Iterable[str]) -> None:
    for key in keys:
        for path in directory.glob(f"{key}.*"):
            path.unlink(missing_ok=True)
