"""What one engine tells another about KV it made: the handle that travels with a split turn, and the files of it.

A handle names the weights that made the KV; an engine with other weights does not take it.
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
    """The parameters of a handle whose KV these weights made; None: the prompt must be computed here."""
    try:
        handle = msgspec.json.decode(kv, type=Handle)
    except msgspec.DecodeError:
        return None
    return dict(handle.params) if handle.weights_id == weights_id else None


def kv_file(directory: Path, key: str, rank: int) -> Path:
    """One for each worker of the engine that prefills."""
    return directory / f"{key}.{rank}.safetensors"


def remove_kv(directory: Path, keys: Iterable[str]) -> None:
    for key in keys:
        for path in directory.glob(f"{key}.*"):
            path.unlink(missing_ok=True)
