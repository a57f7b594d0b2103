"""KV use as the engines report it. Owns the newest report of every engine and the peak of each pool.

Every answer of an engine carries a report, so handling one must not depend on the number of engines.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollart_hpc.observe.status import PoolStatus


@dataclass(slots=True)
class _Engine:
    pool: str
    capacity: int
    used: int = 0


class KvUse:
    def __init__(self) -> None:
        self.pools: dict[str, PoolStatus] = {}
        self._engines: dict[str, _Engine] = {}
        self._peaks: dict[str, float] = {}  # highest share of a pool's capacity in use since `take_peaks`

    def joined(self, name: str, pool: str, kv_tokens: int) -> None:
        self.left(name)
        self._engines[name] = _Engine(pool, kv_tokens)
        status = self.pools.setdefault(pool, PoolStatus())
        status.engines += 1
        status.kv_tokens += kv_tokens

    def left(self, name: str) -> None:
        engine = self._engines.pop(name, None)
        if engine is not None:
            status = self.pools[engine.pool]
            status.engines -= 1
            status.kv_tokens -= engine.capacity
            status.kv_used_tokens -= engine.used

    def saw(self, name: str, used: int) -> None:
        engine = self._engines.get(name)
        if engine is None or not engine.capacity:
            return
        status = self.pools[engine.pool]
        status.kv_used_tokens += used - engine.used
        engine.used = used
        share = status.kv_used_tokens / status.kv_tokens
        self._peaks[engine.pool] = max(share, self._peaks.get(engine.pool, 0.0))

    def take_peaks(self) -> dict[str, float]:
        """The peaks since the last call."""
        peaks, self._peaks = self._peaks, {}
        return peaks
