"""Writes the advantages of the trajectories whose tokens are kept. On rank 0, which has them all; sends nothing."""

from __future__ import annotations

import msgspec
import numpy as np

from rollart_hpc.config.schema import ObserveConfig
from rollart_hpc.observe.plays import ADVANTAGES, Advantages, is_chosen, rounded
from rollart_hpc.observe.shards import ShardWriter
from rollart_hpc.rundir import RunDir
from rollart_hpc.types import Sample, TrainGroup

_encoder = msgspec.json.Encoder()


class Recorder:
    """Holds the chosen samples of a step until the trainer has given them their advantages."""

    def __init__(self, run: RunDir, observe: ObserveConfig, writer: str, attempt: int) -> None:
        self._share = min(observe.transcripts, observe.transcript_tokens)
        self._attempt = attempt
        self._shards = ShardWriter(
            run.transcripts, ADVANTAGES, writer, attempt=attempt, budget=observe.transcript_bytes
        )
        self._samples: dict[str, list[Sample]] = {}

    def take(self, groups: list[TrainGroup], *, starts: bool) -> None:
        """`starts`: these are the first groups of a step, whether or not one was under way."""
        if starts:
            self._samples = {}
        for sample in (sample for group in groups for sample in group.samples):
            if is_chosen(sample.trajectory, self._share):
                self._samples.setdefault(sample.trajectory, []).append(sample)

    def trained(self, step: int) -> None:
        taken, self._samples = self._samples, {}
        for trajectory, samples in taken.items():
            line = Advantages(trajectory, self._attempt, step, [_short(sample) for sample in samples])
            self._shards.add(_encoder.encode(line), step)
        self._shards.flush_if_due()

    def close(self) -> None:
        self._shards.flush()


def _short(sample: Sample) -> float | list[float]:
    values = rounded(np.zeros(1, np.float32) if sample.advantages is None else sample.advantages)
    return values[0] if values and values.count(values[0]) == len(values) else values
