"""The learning rate of a step. Pure; knows no optimizer."""

from __future__ import annotations

import math

from rollart_hpc.config.schema import TrainerConfig


def learning_rate(trainer: TrainerConfig, step: int, num_steps: int) -> float:
    """For the step `step` -> `step + 1`: linear warm-up, then constant, linear or cosine decay to min_lr_ratio."""
    if step < trainer.warmup_steps:
        return trainer.lr * (step + 1) / trainer.warmup_steps
    if trainer.schedule == "constant":
        return trainer.lr
    done = min(1.0, (step - trainer.warmup_steps) / max(1, num_steps - trainer.warmup_steps))
    left = 1.0 - done if trainer.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return float(trainer.lr * (trainer.min_lr_ratio + (1.0 - trainer.min_lr_ratio) * left))
