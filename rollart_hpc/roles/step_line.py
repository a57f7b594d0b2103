"""What a line of metrics.jsonl says about the trajectories of a step. Shared by the controller and the simulator."""

from __future__ import annotations

from collections import Counter, defaultdict

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.state import Trajectory


def staleness_of(record: ev.RecordStep) -> Counter[int]:
    step = record.version - 1
    return Counter(step - member.first_version for group in record.groups for member in group.members)


def means_of(record: ev.RecordStep) -> dict[str, dict[str, float]]:
    played: defaultdict[str, list[Trajectory]] = defaultdict(list)
    for group in record.groups:
        played[group.task] += group.members
    return {
        "reward": {task: sum(t.reward for t in plays) / len(plays) for task, plays in played.items()},
        "success": {task: sum(t.success for t in plays) / len(plays) for task, plays in played.items()},
        "turns": {task: sum(t.turn for t in plays) / len(plays) for task, plays in played.items()},
    }
