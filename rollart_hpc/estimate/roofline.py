"""Seconds that a dense model takes on GPUs: prefill, decoding, training. Pure arithmetic; knows no run and no site.

    an iteration of an engine    decoding sequences give one token each; up to a budget of prompt tokens run with them
      compute                    2 FLOPs per parameter and token, 4 per width of the queries and token of context
      memory                     the weights once, and the KV of every running sequence
      the slower of the two      plus what tensor parallelism exchanges, plus a fixed overhead of the scheduler
    a training step              the slots of the trainer's planner, each as long as its most expensive micro-batch

Two efficiencies say which share of the data sheet's figures is reached. They are assumed unless they were measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from rollart_hpc.config.model_shape import ModelShape
from rollart_hpc.hardware import Gpu

_TERA, _GIGA = 1e12, 1e9
_ITEM = 2  # bytes of a number in BF16
_RICH = 100.0  # FLOPs per byte from which a GPU counts as compute-rich
_OVERHEAD_S = 0.004
_HOP_S = 12e-6  # of an all-reduce, besides its bytes
_NVLINK_SHARE = 0.4  # of the figure, which counts both directions
_PCIE_GB_S = 32.0  # between GPUs without NVLink


@dataclass(frozen=True)
class Efficiency:
    """Shares of the data sheet that real kernels reach."""

    compute: float  # of the FLOPS, in prefill
    memory: float  # of the bandwidth, in decoding


def assumed_efficiency(gpu: Gpu) -> Efficiency:
    """Assumed, not measured: GPUs with few FLOPs per byte keep their arithmetic units busier."""
    is_rich = gpu.tflops * _TERA >= _RICH * gpu.bandwidth_tb_s * _TERA
    return Efficiency(0.55 if is_rich else 0.80, 0.78)


@dataclass(frozen=True)
class Pace:
    """Seconds of an engine's iteration, by its parts. Made from figures (`pace_of`) or fitted to a run."""

    prefill_s: float  # per prompt token
    decode_s: float  # compute per decoded token
    attention_s: float  # compute per prompt token and token of its context
    weights_s: float  # memory per iteration
    kv_s: float  # memory per token of running KV
    exchange_s: float  # per token, between the GPUs of the engine
    fixed_s: float  # per iteration

    def iteration_s(self, decoding: float, kv: float, prefill: float = 0.0, context: float = 0.0) -> float:
        """`kv`: tokens of KV that the running sequences hold; `context`: mean context of the prefilled tokens."""
        compute = decoding * self.decode_s + prefill * (self.prefill_s + context * self.attention_s)
        memory = self.weights_s + kv * self.kv_s
        return (compute if compute > memory else memory) + self.fixed_s + (decoding + prefill) * self.exchange_s


def pace_of(
    shape: ModelShape, gpu: Gpu, tensor: int = 1, efficiency: Efficiency | None = None, overhead_s: float = _OVERHEAD_S
) -> Pace:
    """Of an engine of `tensor` GPUs of one node. The GPU's FLOPS and bandwidth must be known."""
    reached = efficiency or assumed_efficiency(gpu)
    flops = gpu.tflops * _TERA * reached.compute * tensor
    bandwidth = gpu.bandwidth_tb_s * _TERA * reached.memory * tensor
    token_s = 2 * matrix_parameters(shape) / flops
    exchange_s, hops = 0.0, 0
    if tensor > 1:
        hops = 2 * shape.layers  # all-reduces: after attention and after the MLP of every block
        link = gpu.nvlink_gb_s * _NVLINK_SHARE or _PCIE_GB_S
        exchange_s = hops * 2 * (tensor - 1) / tensor * shape.hidden * _ITEM / (link * _GIGA)
    return Pace(
        prefill_s=token_s,
        decode_s=token_s,
        attention_s=4 * shape.layers * shape.queries / flops,
        weights_s=_ITEM * shape.parameters / bandwidth,
        kv_s=kv_bytes(shape) / bandwidth,
        exchange_s=exchange_s,
        fixed_s=overhead_s + hops * _HOP_S,
    )


def matrix_parameters(shape: ModelShape) -> int:
    """Parameters that every token is multiplied with: blocks and head, but not the table of embeddings."""
    return shape.layers * shape.layer_parameters + shape.vocabulary * shape.hidden


def kv_bytes(shape: ModelShape) -> int:
    """Of one token, in BF16, over all GPUs of an engine."""
    return 2 * shape.layers * shape.keys * _ITEM


def weight_bytes(shape: ModelShape) -> int:
    """In BF16."""
    return _ITEM * shape.parameters


def turn_s(pace: Pace, prompt: float, cached: float, answer: float, decoding: float = 1) -> tuple[float, float]:
    """Engine-seconds that one turn takes for prefill and for decoding, if the engine always decodes `decoding` turns.

    Of the prompt, `cached` tokens are in the KV cache already.
    """
    new = max(1, prompt - cached)
    prefill = new * (pace.prefill_s + (prompt - new / 2) * pace.attention_s + pace.exchange_s)
    context = prompt + answer / 2
    decode = answer * pace.iteration_s(decoding, decoding * context) / decoding
    return prefill, decode


def training_flops(shape: ModelShape, lengths: list[int], passes: int) -> float:
    """Of samples of these lengths. `passes`: 2 for a forward pass, 4 for a backward pass."""
    linear, quadratic = matrix_parameters(shape), shape.layers * shape.queries
    return float(passes * sum(n * linear + n * n * quadratic for n in lengths))
