from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.wire.prefix import PrefixHash, prefix_hash

ids = st.lists(st.integers(0, 2**31 - 1), max_size=40).map(lambda values: np.array(values, np.int32))


@given(st.lists(ids, max_size=5))
def test_growing_hash_is_the_hash_of_the_whole(parts: list[np.ndarray]) -> None:
    growing = PrefixHash()
    for part in parts:
        growing.extend(part)
    whole = np.concatenate([np.empty(0, np.int32), *parts]).astype(np.int32)
    assert growing.value == prefix_hash(whole) and growing.num_tokens == len(whole)
    assert 0 <= growing.value < 2**63


def test_layout_and_dtype_do_not_matter_but_values_do() -> None:
    spread = np.arange(20, dtype=np.int32)[::2]
    assert prefix_hash(spread) == prefix_hash(np.arange(0, 20, 2, dtype=np.int64))  # type: ignore[arg-type]
    assert prefix_hash(spread) != prefix_hash(spread + 1)
    assert prefix_hash(np.empty(0, np.int32)) == PrefixHash().value
