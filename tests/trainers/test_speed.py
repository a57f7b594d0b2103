from __future__ import annotations

import pytest
import torch

from rollart_hpc.trainers.speed import gpu_name, peak_bytes, speed

METRICS = {"trained_tokens": 4000.0, "tflop": 8000.0}


@pytest.mark.parametrize(
    ("gpu", "peak"),
    [("NVIDIA H800", 989.5), ("NVIDIA A100-SXM4-80GB", 312), ("NVIDIA H200", 989.5), ("NVIDIA H20", 148), ("Other", 0)],
)
def test_speed_of_a_step(gpu: str, peak: float) -> None:
    found = speed(METRICS, 2.0, 4, peak_bytes=3 << 30, gpu=gpu)
    assert (found["tokens_per_s_rank"], found["tflops_rank"], found["memory_peak_gb"]) == (500, 1000, 3)
    assert found.get("mfu") == (pytest.approx(1000 / peak) if peak else None)


def test_what_is_not_known_is_left_out() -> None:
    assert speed({"trained_tokens": 10.0, "tflop": 0.0}, 1.0, 1, peak_bytes=0, gpu="") == {"tokens_per_s_rank": 10}
    assert speed({"loss": 1.0}, 1.0, 1, peak_bytes=0, gpu="NVIDIA H800") == {}
    assert speed(METRICS, 0.0, 1, peak_bytes=0, gpu="") == {}


def test_a_cpu_has_no_name_but_memory() -> None:
    assert gpu_name(torch.device("cpu")) == "" and peak_bytes(torch.device("cpu")) > 1 << 20
