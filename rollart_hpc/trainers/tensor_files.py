"""The safetensors of a Hugging Face directory, read on demand. Knows no model.

Nothing stays mapped between two reads, so a process's memory grows by what it copies and not by what it has read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from rollart_hpc.errors import SiteError
from rollart_hpc.files import read_json

_WHOLE, _INDEX = "model.safetensors", "model.safetensors.index.json"


class TensorFiles:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        index = read_json(directory / _INDEX)
        self._by_name: dict[str, str] = index["weight_map"] if index else {}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of all tensors; empty if the directory has no safetensors."""
        found: dict[str, tuple[int, ...]] = {}
        for name in sorted(set(self._by_name.values())) or [_WHOLE]:
            if not (self._directory / name).is_file():
                return {}
            with self._opened(name, "its header") as file:
                found |= {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
        return found

    def get(self, name: str) -> torch.Tensor:
        with self._opened(self._by_name.get(name, _WHOLE), name) as file:
            tensor: torch.Tensor = file.get_tensor(name)
            return tensor

    def read_into(self, target: torch.Tensor, name: str, start: tuple[int, ...]) -> None:
        """Copy the part that begins at `start` and has the shape of `target`, in the type of `target`."""
        places = tuple(slice(at, at + size) for at, size in zip(start, target.shape, strict=True))
        with self._opened(self._by_name.get(name, _WHOLE), name) as file:
            target.copy_(file.get_slice(name)[places] if places else file.get_tensor(name))

    @contextmanager
    def _opened(self, file_name: str, what: str) -> Iterator[Any]:
        path = self._directory / file_name
        try:
            with safe_open(path, framework="pt") as file:
                yield file
        except (OSError, SafetensorError) as error:
            problem = f"can't read {what} from {path}: {str(error)[:200]}"
            raise SiteError(problem, "the weights must be safetensors files: check model.path") from None
