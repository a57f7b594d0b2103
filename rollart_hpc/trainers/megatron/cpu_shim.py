"""megatron-core without a GPU, for tests and tiny runs. Owns every patch that takes; refuses where there is a GPU.

megatron-core asks for CUDA by name in places that have nothing to do with kernels. This maps those places to the CPU,
for the whole process, so that its real Python runs: model, schedules, buffers, distributed optimizer, checkpoints.
It says nothing about streams, overlap or NCCL. Never in a process that also runs vLLM.
"""

from __future__ import annotations

import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any

import torch

from rollart_hpc.errors import SiteError

_FACTORIES = ("zeros", "ones", "empty", "full", "tensor", "arange")
_CPU = torch.device("cpu")


def install() -> None:
    """Idempotent. Before the first import of megatron."""
    if torch.cuda.is_available():
        raise SiteError("trainer.device is cpu on a node with a GPU: megatron can't", "set trainer.device=auto")
    if getattr(torch.cuda, "rollart_shim", False):
        return
    torch.cuda.rollart_shim = True  # type: ignore[attr-defined]
    for name in _FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    torch.Tensor.type = _type(torch.Tensor.type)  # type: ignore[method-assign]
    torch.Tensor.cuda = lambda self, *_, **__: self  # type: ignore[method-assign,misc,assignment]
    stubs: dict[str, Any] = {
        "current_device": lambda: _CPU,
        "synchronize": lambda *_: None,
        "get_rng_state": lambda *_, **__: torch.get_rng_state(),
        "set_rng_state": lambda state, *_, **__: torch.set_rng_state(state),
        "manual_seed": lambda seed: None,  # weights come from files and nothing is dropped out
    }
    for name, stub in stubs.items():
        setattr(torch.cuda, name, stub)
    _patch_megatron()


def _patch_megatron() -> None:
    warnings.filterwarnings("ignore", module="megatron")  # that apex and Transformer Engine are missing
    logging.getLogger("megatron").setLevel(logging.WARNING)
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from megatron.core.tensor_parallel import random

    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    load = DistributedOptimizer._set_main_param_and_optimizer_states
    DistributedOptimizer._set_main_param_and_optimizer_states = _with_step(load)


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        if "device" in kwargs and str(kwargs["device"]).startswith("cuda"):
            kwargs["device"] = _CPU
        return factory(*args, **kwargs)

    return make


def _type(original: Callable[..., Any]) -> Callable[..., Any]:
    """The distributed optimizer sorts parameters by the name of their type on a GPU."""

    @functools.wraps(original)
    def named(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        return result.replace("torch.", "torch.cuda.", 1) if isinstance(result, str) else result

    return named


def _with_step(load: Callable[..., None]) -> Callable[..., None]:
    """Loading wants every state of torch's AdamW (of Transformer Engine's there is none like it) from the checkpoint,
    also the step, which it has set already."""

    @functools.wraps(load)
    def load_all(self: Any, parameter: torch.nn.Parameter, tensors: dict[str, torch.Tensor]) -> None:
        group, order = self.model_param_group_index_map[parameter]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        load(self, parameter, {"step": state["step"], **tensors})

    return load_all
