"""Reads the weights of a Hugging Face directory as the stream that an engine installs. Does nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open

from rollart_hpc.errors import UserError


def named_tensors(directory: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields one tensor at a time."""
    files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise UserError(f"{directory} has no *.safetensors", "name a Hugging Face directory that contains weights")
    for path in files:
        with safe_open(path, framework="pt") as content:
            for name in content.keys():  # noqa: SIM118 - not a dict
                yield name, content.get_tensor(name)
