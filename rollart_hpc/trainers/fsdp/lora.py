"""Low-rank adapters (peft) inside a transformers model. Owns what is trained, saved and exported of such a model.

saved      only the adapters: the rest is the base model of the run
exported   full weights with the base model's names, adapters merged in, one tensor at a time
reference  the same model with its adapters switched off
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from rollart_hpc.config.schema import LoraConfig
from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.extras import install

ADAPTER = "default"
_BASE = ".base_layer."


def add_adapters(model: PreTrainedModel, lora: LoraConfig, seed: int) -> None:
    """Freeze the model and add adapters, the same on every rank. They change nothing until they are trained."""
    try:
        import peft
    except ImportError:
        raise SiteError("trainer.lora needs peft, which is not installed", install("lora")) from None
    targets: Any = [name.strip() for name in lora.targets.split(",") if name.strip()]
    if lora.targets == "all-linear":
        targets = sorted({name.rsplit(".", 1)[-1] for name, module in _linears(model)})
    alpha: Any = lora.alpha  # peft accepts a float too
    wanted = peft.LoraConfig(r=lora.rank, lora_alpha=alpha, target_modules=targets, lora_dropout=0.0, bias="none")
    torch.manual_seed(seed)
    try:
        with _seemingly_loaded(model):
            peft.inject_adapter_in_model(wanted, model, ADAPTER)
    except ValueError as error:
        legal = ", ".join(sorted({name.rsplit(".", 1)[-1] for name, _ in _linears(model)}))
        what = f"trainer.lora.targets: {lora.targets!r}: {str(error).splitlines()[0]}"
        raise UserError(what, f"use all-linear, or some of {legal}") from None
    _check(model)


@contextmanager
def _seemingly_loaded(model: PreTrainedModel) -> Iterator[None]:
    """peft puts adapters where the weights are, and on the meta device they would get no values.

    So weights seem to be on the CPU meanwhile: a single zero, seen in their shape.
    """
    linears: list[Any] = [linear for _, linear in _linears(model)]
    on_meta = [(linear, linear.weight) for linear in linears if linear.weight.is_meta]
    for linear, weight in on_meta:
        linear.weight = torch.nn.Parameter(torch.zeros(()).expand(weight.shape), requires_grad=False)
    try:
        yield
    finally:
        for linear, weight in on_meta:
            linear.weight = weight.requires_grad_(False)


def _linears(model: PreTrainedModel) -> Iterator[tuple[str, torch.nn.Module]]:
    """Linear layers except the head, which may be tied to the embeddings."""
    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and module is not head:
            yield name, module


def adapted(model: torch.nn.Module) -> dict[str, Any]:
    """peft's layers by the name of the layer they replace; empty without adapters."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


def _check(model: PreTrainedModel) -> None:
    for name, layer in adapted(model).items():
        base = layer.get_base_layer()
        if type(base) is not torch.nn.Linear or layer is model.get_output_embeddings():
            raise UserError(
                f"trainer.lora.targets: {name} ({type(base).__name__}) is not a linear layer inside a block",
                "name linear layers inside blocks",
            )


@contextmanager
def switched_off(model: torch.nn.Module) -> Iterator[None]:
    """Not peft's own switch: that also changes which parameters require gradients, which FSDP does not expect."""
    layers = adapted(model).values()
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


def is_adapter(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


def base_name(name: str) -> str:
    """The name that the base model has for a tensor of an adapted one."""
    return name.replace(_BASE, ".")


def merged(
    model: PreTrainedModel, named: Iterator[tuple[str, torch.Tensor]], dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    """`named`: all tensors of the model. Yields full tensors with the base model's names, in this type.

    Ranks convert their parts before they gather them, which moves half the bytes; only merging needs float32.
    """
    layers = adapted(model)
    for name, tensor in named:
        if is_adapter(name):
            continue
        layer_name, is_base, kind = name.rpartition(_BASE)
        if is_base and kind == "weight":
            layer = layers[layer_name]
            low = full_tensor(layer.lora_B[ADAPTER].weight) @ full_tensor(layer.lora_A[ADAPTER].weight)
            full = (full_tensor(tensor) + low * layer.scaling[ADAPTER]).to(dtype)
        else:
            full = full_tensor(tensor.detach().to(dtype) if tensor.is_floating_point() else tensor)
        yield (f"{layer_name}.{kind}" if is_base else name), full


def adapters(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """Full tensors with the names that peft gives them in a file."""
    for name, tensor in model.named_parameters():
        if is_adapter(name):
            yield f"base_model.model.{name.replace(f'.{ADAPTER}.', '.')}", full_tensor(tensor)


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor gathered over ranks; may share memory with the live weights."""
    detached = tensor.detach()
    return detached.full_tensor() if isinstance(detached, DTensor) else detached
