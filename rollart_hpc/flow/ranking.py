"""Workers in order of a key that changes all the time. Owns the order; knows nothing of what a key means.

A heap with stale entries: a change pushes a new entry and the old one is skipped when it comes to the top, so that a
change costs O(log n) and the first is found in O(log n) amortised.
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
        """Rank `name`, or rank it anew."""
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
        """The lowest key and its name; names decide between equal keys."""
        heap = self._heap
        while heap:
            key, name = heap[0]
            if self._keys.get(name) == key:
                return heap[0]
            heapq.heappop(heap)
        return None
