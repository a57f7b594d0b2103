"""Runs megatron-core without a GPU, for tests and tiny runs. Owns all patches for that; refuses to run with a GPU.

megatron-core requests CUDA by name in places that have nothing to do with kernels. This module redirects those to the
CPU, for the whole process, so that megatron's real Python code runs: model, schedules, buffers, distributed optimizer,
checkpoints. It tests nothing about streams, overlap or NCCL. Never use it in a process that also runs vLLM.
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
    """Call before the first import of megatron. Idempotent."""
    if torch.cuda.is_available():
        what = "trainer.device is cpu, but this node has a GPU: megatron does not support that"
        raise SiteError(what, "set trainer.device=auto")
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
        "manual_seed": lambda seed: None,  # weights come from files and there is no dropout
    }
    for name, stub in stubs.items():
        setattr(torch.cuda, name, stub)
    _patch_megatron()


def _patch_megatron() -> None:
    warnings.filterwarnings("ignore", module="megatron")  # warnings that apex and Transformer Engine are missing
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
    """The distributed optimizer sorts parameters by type name and expects the names of GPU types."""

    @functools.wraps(original)
    def named(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        return result.replace("torch.", "torch.cuda.", 1) if isinstance(result, str) else result

    return named


def _with_step(load: Callable[..., None]) -> Callable[..., None]:
    """Supplies AdamW's step when megatron loads a checkpoint.

    megatron requires every state of the optimizer in the checkpoint. torch's AdamW has a state `step`, which is not in
    the checkpoint and is already set; Transformer Engine's optimizer has no such state.
    """

    @functools.wraps(load)
    def load_all(self: Any, parameter: torch.nn.Parameter, tensors: dict[str, torch.Tensor]) -> None:
        group, order = self.model_param_group_index_map[parameter]
        state = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
        load(self, parameter, {"step": state["step"], **tensors})

    return load_all
