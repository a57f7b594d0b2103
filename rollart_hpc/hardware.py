"""What processes need of hardware, and GPU specifications. Knows neither roles nor partitions."""

from __future__ import annotations

from typing import NamedTuple

CPU = "cpu"  # environments, controller, rewards
COMPUTE = "compute"  # training, prefill-heavy generation
BANDWIDTH = "bandwidth"  # decode-heavy generation
PROFILES = (COMPUTE, BANDWIDTH)
ANY = "any"  # neither profile in particular
AUTO = "auto"  # of a task: chosen while the run goes on
NEEDS = (CPU, *PROFILES)
MIN_SPEED, MAX_SPEED = 0.01, 100.0  # of an engine, relative to others


class Gpu(NamedTuple):
    tflops: float  # dense, BF16
    memory_gb: float
    bandwidth_tb_s: float  # of its memory
    cost: float  # per hour, relative to an H20; 0 if unknown: the site file may give it
    nvlink_gb_s: float = 0.0  # both directions; 0 if GPUs exchange over PCIe, or unknown


# The first two are from a table of the ROLLART paper, the others from vendor data sheets (SXM if there is one).
GPUS = {
    "h800": Gpu(tflops=989.5, memory_gb=80, bandwidth_tb_s=3.35, cost=2.85, nvlink_gb_s=400),
    "h20": Gpu(tflops=148.0, memory_gb=96, bandwidth_tb_s=4.0, cost=1.0, nvlink_gb_s=900),
    "h100": Gpu(tflops=989.5, memory_gb=80, bandwidth_tb_s=3.35, cost=0.0, nvlink_gb_s=900),
    "h200": Gpu(tflops=989.5, memory_gb=141, bandwidth_tb_s=4.8, cost=0.0, nvlink_gb_s=900),
    "a100": Gpu(tflops=312.0, memory_gb=80, bandwidth_tb_s=2.04, cost=0.0, nvlink_gb_s=600),
    "l40s": Gpu(tflops=362.0, memory_gb=48, bandwidth_tb_s=0.864, cost=0.0),
}
