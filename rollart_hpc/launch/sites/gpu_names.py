"""What Slurm's names of GPUs mean. Owns which are in our table, and which are only slices of a GPU (MIG)."""

from __future__ import annotations

import re

from rollart_hpc.hardware import GPUS

_SLICE = re.compile(r"(?:^|[^a-z0-9])\d+g\.\d+gb", re.IGNORECASE)  # 1g.10gb, a100_3g.20gb


def is_slice(kind: str) -> bool:
    """
    >>> is_slice("1g.10gb"), is_slice("nvidia_a100_3g.20gb"), is_slice("nvidia_h100_80gb")
    (True, True, False)
    """
    return _SLICE.search(kind) is not None


def known_gpu(kind: str) -> str:
    """The GPU in our table that this name means: `nvidia_h800_80gb` is an h800. Empty if there is none: a slice of a
    GPU has neither its compute nor its memory.

    >>> known_gpu("nvidia_h800_80gb"), known_gpu("gtx1080"), known_gpu("a100_1g.5gb")
    ('h800', '', '')
    """
    words = re.split(r"[^a-z0-9]+", kind.lower())
    return "" if is_slice(kind) else next((name for name in GPUS if name in words), "")
