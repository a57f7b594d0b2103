"""How fast a step was, and how much memory it took. Owns the names of these metrics; they differ from run to run.

tokens_per_s_rank   tokens of trained samples per second of training and per rank (on a cluster: per GPU)
tflops_rank         operations of the model for them: recomputation does not count
mfu                 the same, as a share of what this GPU can do at most; only for GPUs of `hardware.GPUS`
memory_peak_gb      the most that a rank used: of its GPU, or on a CPU the process since it started
"""

from __future__ import annotations

import re
import resource
from collections.abc import Mapping

import torch

from rollart_hpc.hardware import GPUS

_GB = 2**30


def speed(metrics: Mapping[str, float], train_s: float, ranks: int, *, peak_bytes: int, gpu: str) -> dict[str, float]:
    """`gpu`: the name that CUDA gives the device; empty on a CPU."""
    found = {"memory_peak_gb": peak_bytes / _GB} if peak_bytes else {}
    seconds = train_s * ranks
    if seconds <= 0 or not metrics.get("trained_tokens"):
        return found
    found["tokens_per_s_rank"] = metrics["trained_tokens"] / seconds
    tflops = metrics.get("tflop", 0.0) / seconds
    if tflops:
        found["tflops_rank"] = tflops
        if peak := _tflops_of(gpu):
            found["mfu"] = tflops / peak
    return found


def _tflops_of(gpu: str) -> float:
    words = re.split(r"[^a-z0-9]+", gpu.lower())
    return next((GPUS[word].tflops for word in words if word in GPUS), 0.0)


def gpu_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


def peak_bytes(device: torch.device) -> int:
    """Since the last call on a GPU, since the process started on a CPU."""
    if device.type != "cuda":
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    most = int(torch.cuda.max_memory_allocated(device))
    torch.cuda.reset_peak_memory_stats(device)
    return most
