"""Checks of kernels against plain arithmetic in float32."""

from __future__ import annotations

import time
from typing import Any

import torch

from rollart_hpc.selftest.checks import Here
from rollart_hpc.trainers.attention import attend

LENGTHS = [5, 5, 17, 64, 130, 130]
HEADS, KV_HEADS, WIDTH, WINDOW = 4, 2, 64, 16
CLOSE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}  # relative to the largest value


def attention(here: Here) -> dict[str, Any]:
    """Outputs and gradients, with and without a window."""
    device = torch.device(here.device)
    dtype = torch.float32 if here.device == "cpu" else torch.bfloat16
    torch.manual_seed(0)
    shapes = [(sum(LENGTHS), heads, WIDTH) for heads in (HEADS, KV_HEADS, KV_HEADS)]
    inputs = [torch.randn(shape).to(dtype) for shape in shapes]
    found = {}
    for window in (None, WINDOW):
        ours = _run([tensor.to(device) for tensor in inputs], window, dense=False)
        exact = _run([tensor.float() for tensor in inputs], window, dense=True)
        off = max(float((a.float().cpu() - b).abs().max() / b.abs().max()) for a, b in zip(ours, exact, strict=True))
        assert off <= CLOSE[dtype], f"window {window}: off by {off:g} of the largest value"
        found[f"off, window {window}"] = off
    return found | {"tokens_per_s": _speed(device, dtype)}


def _run(inputs: list[torch.Tensor], window: int | None, *, dense: bool) -> list[torch.Tensor]:
    q, k, v = leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    out = _dense(q, k, v, window) if dense else attend(q, k, v, LENGTHS, None, window)
    out.float().square().sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def _dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None) -> torch.Tensor:
    k, v = (tensor.repeat_interleave(HEADS // KV_HEADS, 1) for tensor in (k, v))
    sample = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    place = torch.arange(len(q))
    apart = place[:, None] - place
    seen = (sample[:, None] == sample) & (apart >= 0) & (apart < (window or len(q)))
    scores = torch.einsum("qhd,khd->hqk", q, k) / WIDTH**0.5
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v)


def _speed(device: torch.device, dtype: torch.dtype) -> float:
    """Of forward and backward of one long sample."""
    tokens = 32768 if device.type == "cuda" else 512
    q = torch.randn(tokens, HEADS, WIDTH, device=device, dtype=dtype, requires_grad=True)
    for _ in range(2):  # the first call is slower
        began_s = time.monotonic()
        attend(q, q, q, [tokens], None, None).sum().backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.monotonic() - began_s
    return tokens / seconds
