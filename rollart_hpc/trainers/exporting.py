"""Writes the weights of a checkpoint as a Hugging Face directory. Owns the files of such a directory.

Any trainer can be exported: it is built with a single rank on the CPU, loads the checkpoint, and gives its tensors one
at a time. So one machine must hold the model and its optimizer.

    DIR/
      model.safetensors, or model-00001-of-0000N.safetensors with model.safetensors.index.json
      config.json, tokenizer and chat template of the base model
      adapter_model.safetensors, adapter_config.json    instead, if only the adapters are wanted
      README.md                                         where it comes from
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from safetensors.torch import save_file

from rollart_hpc.backends.registry import find
from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import DamagedError, UserError
from rollart_hpc.rundir import TRAINER_PART, Checkpoint, RunDir
from rollart_hpc.trainers.contract import Trainer
from rollart_hpc.trainers.kinds import make_trainer
from rollart_hpc.trainers.world import open_world
from rollart_hpc.weights.digest import Digest

SHARD_BYTES = 4 << 30
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*", "*.gguf")


@runtime_checkable
class HasAdapters(Protocol):
    """A trainer that can give its adapters alone."""

    def adapters(self) -> Iterator[tuple[str, torch.Tensor]]: ...


class Written(NamedTuple):
    digest: str
    num_bytes: int


def export(run: RunDir, checkpoint: Checkpoint, target: Path, *, only_adapters: bool, shard_bytes: int) -> Written:
    """Write the files into `target`, which exists and is empty."""
    config = alone(read_resolved(run.config))
    world = open_world(0, 1, "cpu")
    try:
        trainer = make_trainer(config, run.model, world)
        trainer.load(checkpoint.path / TRAINER_PART)
        if only_adapters:
            return write_adapters(trainer, config, target)
        return write_model(trainer, config, run.model, target, shard_bytes)
    finally:
        world.close()


def alone(config: RunConfig) -> RunConfig:
    """The same trainer on one rank of this machine, without a model to compare with."""
    divided_by = find("trainer", config.trainer.kind).divided_by
    options = {key: 1 if key in divided_by else value for key, value in config.trainer.options.items()}
    trainer = replace(config.trainer, ranks=1, device="cpu", options=options)
    return replace(config, trainer=trainer, algorithm=replace(config.algorithm, kl=0.0))


# --- weights -----------------------------------------------------------------------------------


def write_model(trainer: Trainer, config: RunConfig, model: Path, target: Path, shard_bytes: int) -> Written:
    """`model`: the directory of the base model, whose tokenizer and settings are taken over."""
    written = _write_weights(trainer, target, shard_bytes)
    if written.digest != trainer.digest:
        raise DamagedError("what was written differs from the weights of the trainer", "export it again")
    _copy_rest(model, target, config.trainer.dtype)
    return written


def _write_weights(trainer: Trainer, target: Path, shard_bytes: int) -> Written:
    whole, sizes, places = Digest(), list[int](), dict[str, int]()
    for number, shard in enumerate(_shards(trainer.export(), whole, shard_bytes)):
        save_file(shard, target / _scratch(number), metadata={"format": "pt"})
        sizes.append(sum(tensor.nbytes for tensor in shard.values()))
        places |= dict.fromkeys(shard, number)
    names = [_name(number, len(sizes)) for number in range(len(sizes))]
    for number, name in enumerate(names):
        (target / _scratch(number)).rename(target / name)
    if len(names) > 1:
        index = {"metadata": {"total_size": sum(sizes)}, "weight_map": {key: names[at] for key, at in places.items()}}
        (target / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    return Written(whole.hexdigest(), sum(sizes))


def _shards(
    named: Iterator[tuple[str, torch.Tensor]], whole: Digest, shard_bytes: int
) -> Iterator[dict[str, torch.Tensor]]:
    shard: dict[str, torch.Tensor] = {}
    size = 0
    for name, tensor in named:
        whole.add(name, tensor)
        if shard and size + tensor.nbytes > shard_bytes:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor.detach().cpu().contiguous().clone()  # what a trainer yields may be its live weights
        size += tensor.nbytes
    yield shard


def _scratch(number: int) -> str:
    return f"part-{number}.tmp"


def _name(number: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{number + 1:05}-of-{count:05}.safetensors"


def _copy_rest(model: Path, target: Path, dtype: str) -> None:
    """Everything of the base model but its weights; `config.json` names the type of the new ones."""
    skipped = {path.name for pattern in _WEIGHTS for path in model.glob(pattern)}
    for path in model.iterdir():
        if path.is_file() and path.name not in skipped:
            shutil.copyfile(path, target / path.name)
    path = target / "config.json"
    settings = json.loads(path.read_text())
    settings["dtype" if "dtype" in settings else "torch_dtype"] = dtype
    path.write_text(json.dumps(settings, indent=1) + "\n")


# --- adapters ----------------------------------------------------------------------------------


def write_adapters(trainer: Trainer, config: RunConfig, target: Path) -> Written:
    """In the format of peft."""
    if not isinstance(trainer, HasAdapters) or not config.trainer.lora.rank:
        raise UserError("the run has trained no adapters (trainer.lora.rank is 0)", "export it without --adapters")
    tensors = {name: tensor.cpu().contiguous() for name, tensor in trainer.adapters()}
    save_file(tensors, target / "adapter_model.safetensors", metadata={"format": "pt"})
    whole = Digest()
    for name, tensor in tensors.items():
        whole.add(name, tensor)
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": config.model.path or "model",
        "r": config.trainer.lora.rank,
        "lora_alpha": config.trainer.lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": sorted({name.split(".lora_")[0].rsplit(".", 1)[-1] for name in tensors}),
        "inference_mode": True,
    }
    (target / "adapter_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    return Written(whole.hexdigest(), sum(tensor.nbytes for tensor in tensors.values()))
