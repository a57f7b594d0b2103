"""The state of each trajectory, in its row of the KV cache. Owns the assignment of rows, eviction and moves.

    ids      [ prompt ....... | sampled ... ]        tokens = 9: all ids known
    KV       [ ############## ##            ]        cached = 7: positions whose keys and values are valid

The next forward runs the tokens between `cached` and `tokens`: one token of a decoding row, the new tokens of a
prompt, or all tokens after an install. Knows nothing of models, sampling or time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollart_hpc.engines.contract import Counters
from rollart_hpc.engines.torch.kv import KvCache
from rollart_hpc.types import TokenRecord
from rollart_hpc.wire.prefix import prefix_hash

MIN_SHARED_TOKENS = 16  # below this, prefilling again is as cheap as copying


@dataclass(slots=True, eq=False)
class CachedTrajectory:
    """A trajectory that has a row. `live` is its request in flight; a trajectory without one may be evicted."""

    trajectory: str
    row: int
    live: Any = None
    last_used: int = 0


class Donor(NamedTuple):
    """A row whose beginning a new trajectory can copy: trajectories of a group or task share long prompts."""

    held: CachedTrajectory | None
    num_tokens: int  # tokens that can be copied now
    num_coming: int  # tokens that can be copied once the running rows are prefilled

    @property
    def is_worth_waiting_for(self) -> bool:
        return self.num_coming - self.num_tokens >= MIN_SHARED_TOKENS


class Rows:
    def __init__(self, cache: KvCache, counters: Counters) -> None:
        num_rows, max_len = cache.shape.num_rows, cache.shape.max_len
        self.cache = cache
        self._counters = counters
        self.max_len = max_len
        self.ids = np.zeros((num_rows, max_len), np.int32)
        self.logprobs = np.zeros((num_rows, max_len), np.float32)
        self.versions = np.zeros((num_rows, max_len), np.int32)
        self._numbers = np.zeros((num_rows, 5), np.int64)  # one matrix, so that moving a row moves them all
        self.tokens = self._numbers[:, 0]
        self.cached = self._numbers[:, 1]
        self.start = self._numbers[:, 2]  # first token sampled in this turn
        self.limit = self._numbers[:, 3]  # `tokens` at which the turn ends
        self.prefilled = self._numbers[:, 4]  # tokens prefilled in this turn
        self.temperature = np.zeros(num_rows, np.float32)
        self.held: list[CachedTrajectory | None] = [None] * num_rows
        self._by_trajectory: dict[str, CachedTrajectory] = {}
        self._free = set(range(num_rows))
        self._uses = 0

    @property
    def num_tokens(self) -> int:
        return len(self.held) * self.max_len

    @property
    def num_used_tokens(self) -> int:
        """Even a short trajectory takes a whole row."""
        return len(self._by_trajectory) * self.max_len

    def get(self, trajectory: str) -> CachedTrajectory | None:
        return self._by_trajectory.get(trajectory)

    def holds(self, held: CachedTrajectory, num_tokens: int, hash_: int) -> bool:
        """True if the row begins with exactly this prefix."""
        return num_tokens <= self.tokens[held.row] and prefix_hash(self.ids[held.row, :num_tokens]) == hash_

    def extend(self, held: CachedTrajectory, keep: int, new_ids: NDArray[np.int32]) -> None:
        """Set the row to its first `keep` tokens plus `new_ids`. KV of tokens that were already there stays valid.

        At least one token remains to be run, because the logits come from it.
        """
        row, end = held.row, keep + len(new_ids)
        there = self.ids[row, keep : min(end, int(self.tokens[row]))]
        different = np.flatnonzero(there != new_ids[: len(there)])
        same = int(different[0]) if len(different) else len(there)
        self.ids[row, keep:end] = new_ids
        self.tokens[row] = self.start[row] = end
        self.cached[row] = min(self.cached[row], keep + same, end - 1)

    def record(self, held: CachedTrajectory) -> TokenRecord:
        """The tokens sampled in this turn."""
        at = held.row, slice(int(self.start[held.row]), int(self.tokens[held.row]))
        return TokenRecord(self.ids[at].copy(), self.logprobs[at].copy(), self.versions[at].copy())

    def take(self, trajectory: str, preferred: int) -> CachedTrajectory | None:
        """A row for a new trajectory; evicts the one idle longest if necessary. None: all rows have requests."""
        if not self._free:
            idle = [h for h in self._by_trajectory.values() if h.live is None]
            if not idle:
                return None
            self.release(min(idle, key=lambda h: h.last_used))
            self._counters.num_evicted += 1
        row = preferred if preferred in self._free else next(iter(self._free))
        self._free.remove(row)
        held = self.held[row] = self._by_trajectory[trajectory] = CachedTrajectory(trajectory, row)
        self.tokens[row] = self.cached[row] = 0
        return held

    def donor(self, ids: NDArray[np.int32], num_running: int) -> Donor:
        """The row that shares the longest beginning with `ids`, without the last token, which must be run."""
        size = len(ids) - 1
        if size < MIN_SHARED_TOKENS:
            return Donor(None, 0, 0)
        same = self.ids[:, :size] == ids[:size]
        common = np.minimum(np.where(same.all(axis=1), size, same.argmin(axis=1)), self.tokens)
        usable = np.minimum(common, self.cached)
        best = int(usable.argmax())
        return Donor(self.held[best], int(usable[best]), int(common[:num_running].max(initial=0)))

    def share(self, donor: Donor, held: CachedTrajectory) -> None:
        """Start the new row with the donor's tokens and KV. If the donor was just evicted, this is its row."""
        size = donor.num_tokens
        if donor.held is not None and size >= MIN_SHARED_TOKENS:
            self.cache.copy(donor.held.row, held.row, size)
            self.ids[held.row, :size] = self.ids[donor.held.row, :size]
            self.tokens[held.row] = self.cached[held.row] = size

    def touch(self, held: CachedTrajectory) -> None:
        self._uses += 1
        held.last_used = self._uses

    def release(self, held: CachedTrajectory) -> None:
        del self._by_trajectory[held.trajectory]
        self.held[held.row] = None
        self.tokens[held.row] = self.cached[held.row] = 0
        self._free.add(held.row)

    def invalidate(self) -> None:
        """The weights changed: all KV is invalid, the tokens stay."""
        self.cached[:] = 0

    def free_row(self) -> int | None:
        return next(iter(self._free), None)

    def exchange(self, a: int, b: int) -> None:
        """Swap two rows. If one is free this is a copy, which costs half."""
        if a == b:
            return
        self.cache.exchange(a, b, int(self.cached[a]), int(self.cached[b]))
        used = max(self.tokens[a], self.tokens[b])
        for array in (self.ids[:, :used], self.logprobs[:, :used], self.versions[:, :used], self._numbers):
            kept = array[a].copy()
            array[a], array[b] = array[b], kept
        self.temperature[a], self.temperature[b] = self.temperature[b], self.temperature[a]
        self.held[a], self.held[b] = self.held[b], self.held[a]
        for row in (a, b):
            held = self.held[row]
            if held is None:
                self._free.add(row)
            else:
                held.row = row
                self._free.discard(row)
