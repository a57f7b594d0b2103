"""A transformers causal LM as the engine uses it: the architecture, and weights by name.

Owns loading and installing; knows nothing of requests. Weights always come from `install`, never from the directory.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights

from rollart_hpc.engines.torch import attention
from rollart_hpc.errors import SiteError, UserError

_ATTENTION_LAYERS = {"full_attention", "sliding_attention"}


def load_architecture(directory: Path, device: torch.device, dtype: torch.dtype) -> Any:
    """The model with uninitialised weights and our attention."""
    try:
        config = AutoConfig.from_pretrained(directory)
    except (OSError, ValueError) as error:
        raise UserError(f"no model in {directory}: {error}", "name a directory with a config.json") from None
    unknown = set(getattr(config, "layer_types", None) or ()) - _ATTENTION_LAYERS
    with no_init_weights(), device:
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention.NAME, dtype=dtype)
    if unknown or not model._supports_attention_backend:
        what = f"layers of type {sorted(unknown)}" if unknown else "its own kind of attention"
        raise UserError(f"engine torch can't run {type(model).__name__}: it has {what}", "use another engine or model")
    model.tie_weights()
    return model.eval().requires_grad_(False)


class Weights:
    """The model's tensors under all their names (tied tensors have several)."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._targets: dict[str, torch.Tensor] = dict(model.state_dict())

    def install(self, named: Iterable[tuple[str, torch.Tensor]]) -> int:
        """Copies a full set of weights; a tied tensor needs only one of its names. Returns the bytes copied."""
        missing = {tensor.data_ptr(): name for name, tensor in reversed(self._targets.items())}
        num_bytes = 0
        for name, tensor in named:
            target = self._targets.get(name)
            if target is None or target.shape != tensor.shape:
                have = "no such tensor" if target is None else f"shape {list(target.shape)}"
                raise SiteError(f"weights {name} {list(tensor.shape)}: the model has {have}")
            target.copy_(tensor)
            missing.pop(target.data_ptr(), None)
            num_bytes += tensor.nbytes
        if missing:
            raise SiteError(f"{len(missing)} tensors are missing from the weights: {sorted(missing.values())[:3]} ...")
        return num_bytes
