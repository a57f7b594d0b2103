"""Builds a transformers causal LM without its weights, and reads each rank's part of them from safetensors.

    blank     the model; its parameters are on the meta device and take no memory, its buffers are real
    fill      after sharding: memory for this rank's parts, filled from the files

So no rank ever holds the whole model. Where the files do not have the model's own names (other formats, families whose
weights transformers converts while it loads), transformers loads all of it on every rank.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from rollart_hpc.errors import SiteError
from rollart_hpc.trainers import attention
from rollart_hpc.trainers.fsdp import lora
from rollart_hpc.trainers.tensor_files import TensorFiles

log = logging.getLogger(__name__)


def blank(directory: Path) -> PreTrainedModel:
    """The model of a Hugging Face directory, without dropout; whole if its files must be converted."""
    disable_progress_bar()
    how = {"dtype": torch.float32, "attn_implementation": attention.register()}
    try:
        config = AutoConfig.from_pretrained(directory, local_files_only=True)
        with _parameters_on_meta():
            model = AutoModelForCausalLM.from_config(config, **how)
        problem = _mismatch(model, TensorFiles(directory).shapes())
        if problem:
            log.info("%s: every rank loads the whole model: %s", directory, problem)
            model = AutoModelForCausalLM.from_pretrained(directory, local_files_only=True, **how)
    except (OSError, ValueError, KeyError) as error:
        what = str(error).splitlines()[0][:300]
        raise SiteError(f"can't train {directory}: {what}", "check model.path") from None
    return model.eval()


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Memory of a parameter is given back when its module takes it, before anything is written to it.

    `torch.device("meta")` would also take the values of buffers that no file has.
    """
    register = torch.nn.Module.register_parameter

    def register_on_meta(self: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = torch.nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)
        register(self, name, parameter)

    torch.nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register  # type: ignore[method-assign]


def _mismatch(model: PreTrainedModel, stored: dict[str, tuple[int, ...]]) -> str:
    """Why the files can't be read tensor by tensor."""
    if not stored:
        return "it has no safetensors"
    for name, tensor in named_tensors(model):
        if stored.get(name) != tuple(tensor.shape):
            return f"{name} is {stored.get(name, 'missing')}, expected {tuple(tensor.shape)}"
    tied = (model._tied_weights_keys or {}) if model.config.get_text_config().tie_word_embeddings else {}
    both = [name for name in tied if name in stored]
    return f"{both[0]} is tied and stored" if both else ""


def fill(model: PreTrainedModel, directory: Path, device: torch.device, own: frozenset[str] = frozenset()) -> None:
    """Read what is still on the meta device. Adapters, and weights named in `own`, are real from the beginning."""
    wanted = [(name, tensor) for name, tensor in named_tensors(model) if not lora.is_adapter(name)]
    if not any(tensor.is_meta for _, tensor in wanted):
        return
    _allocate(model, device)
    files = TensorFiles(directory)
    with torch.no_grad():
        for name, tensor in named_tensors(model):
            if not lora.is_adapter(name) and name not in own:
                files.read_into(*_part(tensor, lora.base_name(name)))


def _allocate(model: PreTrainedModel, device: torch.device) -> None:
    """Memory for parameters; one that several modules share stays one."""
    made: dict[int, torch.nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta:
                if id(parameter) not in made:
                    empty = torch.empty_like(parameter, device=device)
                    made[id(parameter)] = torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
                module._parameters[name] = made[id(parameter)]
    if isinstance(model, FSDPModule):
        model._apply(lambda tensor: tensor)  # FSDP takes over the new parameters


def _part(tensor: torch.Tensor, name: str) -> tuple[torch.Tensor, str, tuple[int, ...]]:
    """This rank's memory of a tensor, its name in the files, and where its part begins."""
    if not isinstance(tensor, DTensor):
        return tensor, name, (0,) * tensor.ndim
    _, start = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return tensor._local_tensor, name, tuple(start)


def named_tensors(model: PreTrainedModel) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of the model with Hugging Face names: parameters (tied ones once) and persistent buffers."""
    yield from model.named_parameters()
    kept = model.state_dict().keys()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name in kept)
