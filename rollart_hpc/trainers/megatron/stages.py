"""Runs micro-batches through the stages of a pipeline, with megatron's schedules. Knows no model and no loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from rollart_hpc.trainers.packing import MicroBatch

After = Callable[..., Any]


def run(
    model: torch.nn.Module,
    micros: list[MicroBatch],
    after: Sequence[After],
    *more: Any,
    forward_only: bool,
) -> list[Any]:
    """`model(micro, *more)` on all stages; on the last one `after` gets the output of each micro-batch.

    With `forward_only` it returns what `after` returned, on the last stage. Otherwise `after` returns what
    `summed` makes of a loss.
    """
    from megatron.core.pipeline_parallel import get_forward_backward_func

    def forward(work: Iterator[tuple[MicroBatch, After]], model: torch.nn.Module) -> tuple[Any, Any]:
        micro, then = next(work)
        return model(micro, *more), then

    return get_forward_backward_func()(
        forward_step_func=forward,
        data_iterator=zip(micros, after),
        model=model,
        num_microbatches=len(micros),
        seq_length=1,  # unused: stages send each other the shapes
        micro_batch_size=1,
        forward_only=forward_only,
        collect_non_loss_data=forward_only,
    )


def summed(loss: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
    """The form that megatron's schedules expect: the sum, a divisor (unused here), nothing to report."""
    return loss, torch.zeros((), dtype=torch.int, device=loss.device), None
