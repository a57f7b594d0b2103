"""What a training backend can do. Owns the contract and the result of a step; knows no backend and no algorithm.

A trainer at version n runs the step n -> n+1:

    accumulate(groups)   any number of times, as groups arrive: forward, backward, gradients summed; may hold some back
    step()               train what is held back, divide once by the step's total, clip, update: version n+1
    export()             the new weights, tensor by tensor

With several ranks every rank makes the same calls with the same groups; each trains its share of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from rollart_hpc.types import TokenRecord, TrainGroup

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class StepResult:
    """One optimizer step: `parent_digest` is that of the weights it started from."""

    version: int
    parent_digest: str
    digest: str
    metrics: dict[str, float]


class Trainer(Protocol):
    version: int
    digest: str

    def accumulate(self, groups: list[TrainGroup], *, last: bool = False) -> None:
        """Take whole groups and train what fills micro-batches of all replicas; hold back the rest until more comes.
        `last`: nothing more comes, `step` trains all that is left. Losses are summed, nothing is divided yet."""

    def discard(self) -> None:
        """Forget what was accumulated or held back since the last step."""

    def step(self) -> StepResult:
        """Train what is held back, divide once, clip, update, count the version up."""

    def logprobs(self, records: list[TokenRecord]) -> list[NDArray[np.float32]]:
        """Log-prob of every sampled token under the current weights, 0 at all other places."""

    def export(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full tensors by their Hugging Face names, tied ones once, on rank 0 at least. One exists at a time; all ranks
        go through it."""

    def save(self, directory: Path) -> None:
        """Write weights, optimizer and version; between steps only."""

    def load(self, directory: Path) -> None:
        """Restore what `save` wrote, with any number of ranks. A damaged checkpoint raises SiteError."""
