"""Hardware classes. Owns their names; knows neither roles nor partitions."""

from __future__ import annotations

CPU = "cpu"  # environments, controller, rewards
COMPUTE = "compute"  # training, prefill-heavy generation
BANDWIDTH = "bandwidth"  # decode-heavy generation
ENGINE_CLASSES = (COMPUTE, BANDWIDTH)
