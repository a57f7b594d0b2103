"""Held-out plays. Owns which validations are due and what they found.

The first (before training) and the last run alone, so that all their plays see one version; the
ones between run beside training and report which versions they saw.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from rollart_hpc.flow.rules import FlowRules
from rollart_hpc.flow.state import Trajectory


@dataclass(slots=True)
class TaskScore:
    plays: int = 0  # scored
    failed: int = 0  # given up: they have no score
    successes: int = 0
    reward_sum: float = 0.0
    turns: int = 0
    lowest_version: int = -1
    highest_version: int = -1
    each: list[tuple[int, float, bool]] = field(default_factory=list)  # seed, reward and success of every play

    @property
    def success(self) -> float | None:
        return self.successes / self.plays if self.plays else None

    @property
    def reward(self) -> float | None:
        return self.reward_sum / self.plays if self.plays else None

    def add(self, trajectory: Trajectory) -> None:
        self.plays += 1
        self.successes += trajectory.success
        self.reward_sum += trajectory.reward
        self.turns += trajectory.turn
        self.each.append((trajectory.seed, trajectory.reward, trajectory.success))
        if trajectory.first_version >= 0:
            low, high = self.lowest_version, trajectory.first_version
            self.lowest_version = high if low < 0 else min(low, high)
            self.highest_version = max(self.highest_version, trajectory.last_version)


@dataclass(slots=True)
class Validation:
    """One validation under way or done."""

    version: int
    alone: bool
    open: int
    scores: dict[str, TaskScore] = field(default_factory=dict)


class Validator:
    def __init__(self, rules: FlowRules) -> None:
        self.rules = rules
        self.done: list[Validation] = []
        self.running: Validation | None = None

    @property
    def blocks_training(self) -> bool:
        return self.running is not None and self.running.alone

    def is_due(self, version: int) -> bool:
        if not self.rules.validation_plays or self.running is not None:
            return False
        every = self.rules.validation_every
        return (version in (0, self.rules.steps) or (every > 0 and version % every == 0)) and not self.has(version)

    def has(self, version: int) -> bool:
        return any(v.version == version for v in reversed(self.done))

    def begin(self, version: int, tasks: list[str], attempt: int) -> list[Trajectory]:
        plays = self.rules.validation_plays
        alone = version in (0, self.rules.steps)
        self.running = Validation(version, alone, plays * len(tasks), {task: TaskScore() for task in tasks})
        return [
            Trajectory(
                id=f"a{attempt}.v{version}.{task}.{index}",
                task=task,
                purpose="validate",
                seed=self.rules.env_seed("validate", task, index // self.rules.validation_samples),
                sample_seed=self.rules.sample_seed("validate", task, index, version),
            )
            for index in range(plays)
            for task in tasks
        ]

    def add(self, trajectory: Trajectory, has_failed: bool = False) -> Validation | None:
        """Count a play; returns the validation if that was its last."""
        running = self.running
        assert running is not None
        score = running.scores[trajectory.task]
        if has_failed:
            score.failed += 1
        else:
            score.add(trajectory)
        running.open -= 1
        if running.open:
            return None
        self.running = None
        self.done.append(running)
        return running

    def roll_back(self, version: int) -> bool:
        """Versions above this one no longer exist. True if that cancels the running validation."""
        self.done = [v for v in self.done if v.version <= version]
        is_void = self.running is not None and self.running.version > version
        if is_void:
            self.running = None
        return is_void

    def snapshot(self) -> list[dict[str, Any]]:
        return [
            {"version": v.version, "alone": v.alone, "scores": {task: asdict(s) for task, s in v.scores.items()}}
            for v in self.done
        ]

    def restore(self, saved: list[dict[str, Any]]) -> None:
        for data in saved:
            scores = {task: TaskScore(**score) for task, score in data["scores"].items()}
            self.done.append(Validation(data["version"], data["alone"], 0, scores))
