"""The hash with which an env worker and an engine compare a prefix of token ids. Owns only that definition."""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray


def prefix_hash(ids: NDArray[np.int32]) -> int:
    """63 bits, so that it fits the signed integers of msgpack and numpy."""
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(ids, np.int32).data) >> 1


class PrefixHash:
    """The same hash for a growing sequence, without hashing its beginning again at every turn."""

    def __init__(self, ids: NDArray[np.int32] | None = None) -> None:
        self._state = xxhash.xxh3_64()
        self.num_tokens = 0
        if ids is not None:
            self.extend(ids)

    def extend(self, ids: NDArray[np.int32]) -> None:
        self._state.update(np.ascontiguousarray(ids, np.int32).data)
        self.num_tokens += len(ids)

    @property
    def value(self) -> int:
        return self._state.intdigest() >> 1
