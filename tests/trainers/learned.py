"""Metrics of a step that do not depend on how its samples are packed, for comparisons of trainers."""

from __future__ import annotations

PLANNED = ("packing_efficiency", "micro_batches")


def learned(metrics: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if key not in PLANNED}
