"""Indexes untrained groups by age. Owns the index; makes no decisions.

A group's age is the version of its oldest first token, or the version of the engine that will sample it. Groups in a
batch are not indexed.
"""

from __future__ import annotations

from collections import Counter

from rollart_hpc.flow.state import Group


class Ages:
    def __init__(self) -> None:
        self._by_version: dict[int, dict[int, Group]] = {}
        self._counts: dict[int, Counter[str]] = {}  # groups of each task, by version

    def note(self, group: Group) -> None:
        """Update the index after a member started, was dispatched, or must start over."""
        begun = [m.first_version for m in group.members if m.first_version >= 0]
        planned = [m.planned_version for m in group.members if m.first_version < 0 <= m.planned_version]
        group.version = min(begun, default=None)
        oldest = min([*begun, *planned], default=None)
        if oldest != group.indexed_at:
            self.remove(group)
            self._put(group, oldest)

    def remove(self, group: Group) -> None:
        version, group.indexed_at = group.indexed_at, None
        if version is None:
            return
        del self._by_version[version][group.id]
        self._counts[version][group.task] -= 1
        if not self._by_version[version]:
            del self._by_version[version], self._counts[version]

    def _put(self, group: Group, version: int | None) -> None:
        group.indexed_at = version
        if version is not None:
            self._by_version.setdefault(version, {})[group.id] = group
            self._counts.setdefault(version, Counter())[group.task] += 1

    def older_than(self, version: int) -> list[Group]:
        """In the order of their admission."""
        old = [groups for at, groups in self._by_version.items() if at < version]
        return sorted((group for groups in old for group in groups.values()), key=lambda group: group.id)

    def num_up_to(self, version: int, task: str) -> int:
        return sum(counts[task] for at, counts in self._counts.items() if at <= version)
