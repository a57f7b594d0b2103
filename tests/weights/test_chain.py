"""The source of a transfer sends its weights once, however many relays there are."""

from __future__ import annotations

import pytest
import torch

from rollart_hpc.weights import chain
from tests.weights.chain import measure


@pytest.mark.parametrize("count", [2, 16])
def test_the_source_sends_the_weights_once(count: int) -> None:
    found = measure(count, 24)
    assert len(found.digests) == count
    assert found.model <= found.root <= 1.1 * found.model


def test_small_tensors_take_the_tree_and_pairs_need_no_chain() -> None:
    class Group:
        def __init__(self, size: int) -> None:
            self.size = lambda: size

    large, small = torch.zeros(chain.LEAST_BYTES, dtype=torch.uint8), torch.zeros(8)
    some, pair = (chain.Chain(Group(size), None) for size in (3, 2))  # type: ignore[arg-type]
    assert [some.takes(large), some.takes(small), pair.takes(large)] == [True, False, False]
