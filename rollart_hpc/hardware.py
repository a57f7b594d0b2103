"""Hardware classes and the figures of known devices. Owns numbers; knows neither roles nor partitions.

The figures are those of the ROLLART paper (arXiv 2512.22560), table of GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

CPU = "cpu"  # environments, controller, rewards
COMPUTE = "compute"  # training, prefill-heavy generation
BANDWIDTH = "bandwidth"  # decode-heavy generation
CLASSES = (CPU, COMPUTE, BANDWIDTH)
ENGINE_CLASSES = (COMPUTE, BANDWIDTH)


@dataclass(frozen=True)
class Device:
    """What one device can do, for routing and for emulation."""

    flops_per_s: float  # BF16, dense
    bytes_per_s: float  # memory bandwidth
    memory_bytes: float
    cost: float  # relative to an H20


DEVICES = {
    "h800": Device(flops_per_s=989.5e12, bytes_per_s=3.35e12, memory_bytes=80e9, cost=2.85),
    "h20": Device(flops_per_s=148e12, bytes_per_s=4.0e12, memory_bytes=96e9, cost=1.00),
}
