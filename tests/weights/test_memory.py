"""Weights on their way out of a trainer: how many bytes live beside the model."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from rollart_hpc.types import WeightsId
from rollart_hpc.weights import direct
from rollart_hpc.weights.direct import BucketStream
from rollart_hpc.weights.store import NodeStore

BUCKET = 64 << 10
TENSOR = BUCKET // 4


class Export:
    """Whole tensors gathered one after the other, as a sharded trainer does it; counts those still alive."""

    def __init__(self, num: int) -> None:
        self._num = num
        self.most = 0
        self._made: list[weakref.ref[torch.Tensor]] = []

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for number in range(self._num):
            tensor = torch.full((TENSOR // 4,), float(number))
            self._made.append(weakref.ref(tensor))
            gc.collect()
            self.most = max(self.most, sum(ref() is not None for ref in self._made))
            yield f"t{number}", tensor
            del tensor


@pytest.fixture
def live_bytes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Most bytes of buffers that were alive at once."""
    made: list[weakref.ref[torch.Tensor]] = []
    most = 0
    plain = torch.empty

    def empty(*args: object, **options: object) -> torch.Tensor:
        nonlocal most
        tensor: torch.Tensor = plain(*args, **options)  # type: ignore[call-overload]
        made.append(weakref.ref(tensor))
        most = max(most, sum(buffer.numel() for ref in made if (buffer := ref()) is not None))
        return tensor

    monkeypatch.setattr(direct.torch, "empty", empty)
    return lambda: most


def test_staged_weights_are_written_one_tensor_at_a_time(tmp_path: Path) -> None:
    export = Export(40)
    NodeStore(tmp_path / "store", "node").write(WeightsId(1, 0), export, BUCKET)
    assert export.most <= 2  # the one being written and the one being gathered


def test_direct_weights_never_need_more_than_two_buckets(live_bytes: Callable[[], int]) -> None:
    export = Export(40)
    sizes = [info.num_bytes for info, _ in BucketStream(export, BUCKET)]
    assert len(sizes) == 10 and sum(sizes) == 40 * TENSOR
    assert export.most <= 2
    assert live_bytes() <= 2 * BUCKET
