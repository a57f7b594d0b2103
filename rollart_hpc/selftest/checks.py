"""The checks of `selftest`, and what each needs. Plain data: starts nothing and imports no torch.

A check is a function (Here) -> figures in `selftest.heavy`; it raises if something is wrong, and has a process of its
own. A check on GPUs is the same function as the one on the CPU wherever that is possible, so that the CPU proves all
but the device.
"""

from __future__ import annotations

from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import msgspec


class State(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class Here(NamedTuple):
    """Where a check runs."""

    scratch: Path  # a directory of its own
    device: str  # cpu or cuda
    gpus: int  # of this machine


class Check(NamedTuple):
    name: str
    shows: str
    function: str  # module:function below `selftest.heavy`
    device: str = "cpu"
    gpus: int = 0  # at least
    modules: tuple[str, ...] = ("torch", "transformers", "safetensors")
    only_without_gpus: bool = False
    limit_s: float = 600.0

    def obstacle(self, gpus: int) -> str:
        """Why it can't run on a machine with so many GPUs; empty if it can."""
        missing = [name for name in self.modules if find_spec(name) is None]
        if gpus < self.gpus:
            there = "there is none" if not gpus else f"there is {gpus}"
            return f"not run: needs {self.gpus} GPU{'s' * (self.gpus > 1)}, {there}"
        if self.only_without_gpus and gpus:
            return "not run: this machine has GPUs"
        return f"not run: {', '.join(missing)} is not installed" if missing else ""


class Row(msgspec.Struct):
    """The result of a check."""

    name: str
    state: State
    shows: str
    detail: str = ""  # why it failed or was skipped
    figures: dict[str, Any] = {}
    seconds: float = 0.0


_VLLM = ("torch", "transformers", "vllm")
_MEGATRON = ("torch", "transformers", "megatron")

CHECKS = (
    Check("devices", "GPUs, their memory and how they are linked", "devices:devices", "cuda", 1),
    Check("nccl", "NCCL between the GPUs of this machine", "devices:nccl", "cuda", 2),
    Check("attention", "packed attention against a dense mask in float32", "kernels:attention"),
    Check("attention-gpu", "the same, by the GPU's kernel in bfloat16", "kernels:attention", "cuda", 1),
    Check("fsdp", "a step of two ranks against one in float32", "training:fsdp"),
    Check("fsdp-gpu", "a step on all GPUs against the CPU in float32", "training:fsdp", "cuda", 1),
    Check(
        "megatron",
        "a step of megatron's CPU layers against fsdp",
        "training:megatron",
        modules=_MEGATRON,
        only_without_gpus=True,
    ),
    Check(
        "megatron-gpu",
        "a step with Transformer Engine against fsdp on the CPU",
        "training:megatron",
        "cuda",
        1,
        modules=(*_MEGATRON, "transformer_engine"),
    ),
    Check("checkpoint", "saved by two ranks, restored by one", "training:checkpoint"),
    Check("checkpoint-gpu", "saved and restored on all GPUs", "training:checkpoint", "cuda", 1),
    Check("weights-staged", "shared memory to shared memory through gloo", "transports:staged"),
    Check("weights-direct", "trainer to engine by a collective", "transports:direct"),
    Check("weights-direct-gpu", "the same through NCCL", "transports:direct", "cuda", 2),
    Check("engine-torch", "install, log-probs of the trainer, abort", "generation:torch_engine"),
    Check("engine-torch-gpu", "the same on a GPU", "generation:torch_engine", "cuda", 1),
    Check(
        "engine-vllm",
        "start, install, log-probs of the trainer, abort",
        "generation:vllm_engine",
        modules=_VLLM,
        only_without_gpus=True,
    ),
    Check("engine-vllm-gpu", "the same on a GPU", "generation:vllm_engine", "cuda", 1, modules=_VLLM),
    Check(
        "split-gpu",
        "one vLLM prefills, another decodes, through NIXL",
        "generation:split",
        "cuda",
        2,
        modules=(*_VLLM, "nixl"),
    ),
)


def select(names: list[str]) -> list[Check]:
    """Those of these names, or all."""
    return [check for check in CHECKS if not names or check.name in names]
