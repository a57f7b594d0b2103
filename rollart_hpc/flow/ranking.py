"""Workers ordered by a key that changes often. Owns the order; does not know what the key means.

A heap with lazy deletion. A change pushes a new entry, and the old one is skipped when it reaches the top. A change and
a lookup take O(log n) amortised.
"""

from __future__ import annotations

import heapq

Key = tuple[float, ...]


class Ranking:
    def __init__(self) -> None:
        self._keys: dict[str, Key] = {}
        self._heap: list[tuple[Key, str]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def put(self, name: str, key: Key) -> None:
        """Add `name`, or change its key."""
        if self._keys.get(name) == key:
            return
        self._keys[name] = key
        heapq.heappush(self._heap, (key, name))
        if len(self._heap) > 64 + 4 * len(self._keys):
            self._heap = [(key, name) for name, key in self._keys.items()]
            heapq.heapify(self._heap)

    def drop(self, name: str) -> None:
        self._keys.pop(name, None)

    def first(self) -> tuple[Key, str] | None:
        """The lowest key and its name. Names break ties."""
        heap = self._heap
        while heap:
            key, name = heap[0]
            if self._keys.get(name) == key:
                return heap[0]
            heapq.heappop(heap)
        return None
