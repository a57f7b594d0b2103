"""How many groups of each task a batch holds. Owns the deficit counter; knows nothing of groups.

Every batch is dealt slot by slot: each task earns its share of a slot, the one with the largest
credit takes it and pays 1. So batches follow the mix exactly in the long run, whatever order
groups complete in.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any


class TaskMix:
    def __init__(self, weights: dict[str, float], slots: int) -> None:
        self.weights = dict(weights)
        self.slots = slots
        self.tasks: list[str] = []  # tasks that are not quarantined
        self._find_tasks()
        self._credit = dict.fromkeys(weights, 0.0)
        self._quotas: dict[int, dict[str, int]] = {}

    def _find_tasks(self) -> None:
        self.tasks = [task for task, weight in self.weights.items() if weight > 0]

    def quota(self, step: int) -> dict[str, int]:
        """Groups of each task in the batch of this step."""
        if step not in self._quotas:
            self._quotas[step] = self._deal(self.slots)
        return self._quotas[step]

    def forget_before(self, step: int) -> None:
        for old in [s for s in self._quotas if s < step]:
            del self._quotas[old]

    def remove(self, task: str, step: int, taken: dict[str, int]) -> None:
        """Quarantine a task from `step` on. The batch of that step already holds `taken`."""
        self.weights[task] = 0.0
        self._find_tasks()
        self._quotas = {}
        rest = self._deal(self.slots - sum(taken.values())) if self.tasks else {}
        self._quotas[step] = {name: taken.get(name, 0) + rest.get(name, 0) for name in self.weights}

    def put_back(self, task: str, weight: float) -> None:
        """End a quarantine. The task gets its share of the batches that are not dealt yet."""
        self.weights[task] = weight
        self._find_tasks()

    def _deal(self, slots: int) -> dict[str, int]:
        total = sum(self.weights.values())
        dealt = dict.fromkeys(self.weights, 0)
        for _ in range(slots):
            for task in self.tasks:
                self._credit[task] += self.weights[task] / total
            winner = max(self.tasks, key=lambda task: self._credit[task])
            self._credit[winner] -= 1.0
            dealt[winner] += 1
        return dealt

    def snapshot(self) -> dict[str, Any]:
        return {
            "weights": self.weights,
            "credit": self._credit,
            "quotas": {str(step): quota for step, quota in self._quotas.items()},
        }

    def restore(self, saved: dict[str, Any], quarantined: Collection[str] = ()) -> None:
        """Take over a snapshot. Weights are those of now; batches are dealt again if tasks, weights or sizes differ."""
        for task in self.weights:
            self._credit[task] = saved["credit"].get(task, 0.0)
            if task in quarantined:
                self.weights[task] = 0.0
        self._find_tasks()
        quotas = {int(step): quota for step, quota in saved["quotas"].items()}
        if saved["weights"] == self.weights and all(sum(quota.values()) == self.slots for quota in quotas.values()):
            self._quotas = quotas
