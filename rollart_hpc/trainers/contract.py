"""The contract of a training backend, and the result of a step. Knows no backend and no algorithm.

A trainer at version n runs the step n -> n+1:

    accumulate(groups)   any number of times, as groups arrive: forward, backward, sum gradients; may hold some back
    step()               train what is held back, divide once by the step's total, clip, update: version n+1
    export()             the weights, tensor by tensor

With several ranks, every rank makes the same calls with the same groups and trains its share of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from rollart_hpc.types import TokenRecord, TrainGroup

if TYPE_CHECKING:
    import torch


Keep = Callable[[Iterable[tuple[str, "torch.Tensor"]]], str]  # takes weights, returns their digest


@dataclass(frozen=True)
class StepResult:
    """One optimizer step: `parent_digest` is the digest of the weights before it.

    `peak_bytes`: the most memory that a rank used since the last step; 0 = not known.
    """

    version: int
    parent_digest: str
    digest: str
    metrics: dict[str, float]
    peak_bytes: int = field(default=0, compare=False)


class Trainer(Protocol):
    version: int
    digest: str

    def accumulate(self, groups: list[TrainGroup], *, last: bool = False) -> None:
        """Take whole groups, train those that fill micro-batches of all replicas, and hold back the rest.

        `last`: these are the last groups; `step` trains the rest. Losses are summed, nothing is divided yet.
        """

    def discard(self) -> None:
        """Discard everything accumulated or held back since the last step."""

    def step(self, keep: Keep | None = None) -> StepResult:
        """Train what is held back, divide once, clip, update, increment the version.

        `keep`, on rank 0: gets the new weights as from `export`, so that they are gathered once for digest and copy.
        """

    def logprobs(self, records: list[TokenRecord]) -> list[NDArray[np.float32]]:
        """Log-prob of every sampled token under the current weights; 0 for all other tokens."""

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full tensors with their Hugging Face names, tied ones once, at least on rank 0.

        One tensor exists at a time. All ranks must iterate.
        """

    def save(self, directory: Path) -> None:
        """Write weights, optimizer and version. Call only between steps."""

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote, with any number of ranks. A damaged checkpoint raises SiteError."""
