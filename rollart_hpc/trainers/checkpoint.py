"""A trainer's part of a checkpoint. Owns its files and how damage is found; knows nothing of steps or of other parts.

    DIRECTORY/
      __<rank>_<i>.distcp, .metadata     torch.distributed.checkpoint: model, optimizer
      files_<rank>.json                  size and xxh3 of the files that rank wrote
      trainer.json                       version, digest, number of ranks: written last

torch.distributed.checkpoint does not notice flipped bits, so sizes and checksums are compared before anything is
read. It may be loaded by another number of ranks than wrote it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
import xxhash
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed
from transformers import PreTrainedModel

from rollart_hpc.errors import SiteError
from rollart_hpc.files import make_directory, write_json
from rollart_hpc.trainers.model import named_tensors
from rollart_hpc.trainers.world import World

_FORMAT = 1
_MARK = "trainer.json"
_METADATA = ".metadata"
_FIX = "go on from an older checkpoint: remove this one"
_HASH_BYTES = 1 << 20


class Mark(NamedTuple):
    """Which weights a checkpoint holds."""

    version: int
    digest: str


def save(directory: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, world: World, mark: Mark) -> None:
    make_directory(directory)
    has_stepped = bool(optimizer.state)
    world.all_good(_attempt(lambda: _write(directory, model, optimizer if has_stepped else None, world), directory))
    if world.rank == 0:
        content = {"format": _FORMAT, **mark._asdict(), "ranks": world.size, "has_stepped": has_stepped}
        problem = _attempt(lambda: write_json(directory / _MARK, content), directory)
    else:
        problem = ""
    world.all_good(problem)


def load(directory: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, world: World) -> Mark:
    """Into the live model and optimizer; `confirm` the digest afterwards."""
    head: dict[str, Any] = {}
    problem = _problem(directory, world, head)
    world.all_good(problem)
    optimizer.state.clear()
    world.all_good(_attempt(lambda: _read(directory, model, optimizer if head["has_stepped"] else None), directory))
    return Mark(int(head["version"]), str(head["digest"]))


def confirm(directory: Path, mark: Mark, found: str, world: World) -> None:
    """The weights that were loaded must be those that were saved."""
    problem = "" if found == mark.digest else f"checkpoint {directory}: weights {found}, expected {mark.digest}"
    world.all_good(problem)


def _state(model: PreTrainedModel, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    state: dict[str, Any] = {"model": {name: tensor.detach() for name, tensor in named_tensors(model)}}
    if optimizer is not None:
        state["optimizer"] = get_optimizer_state_dict(model, optimizer)
    return state


def _write(directory: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer | None, world: World) -> None:
    save_distributed(_state(model, optimizer), checkpoint_id=directory)
    names = [path.name for path in directory.glob(f"__{world.rank}_*.distcp")]
    names += [_METADATA] if world.rank == 0 else []
    for name in names:
        (directory / name).chmod(0o600)
    write_json(directory / f"files_{world.rank}.json", {name: _seal(directory / name) for name in sorted(names)})


def _read(directory: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer | None) -> None:
    """Tensors of the model are filled in place."""
    state = _state(model, optimizer)
    load_distributed(state, checkpoint_id=directory)
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, state["optimizer"])


def _attempt(action: Any, directory: Path) -> str:
    """What went wrong, "" if nothing did: ranks must agree before one of them raises."""
    try:
        action()
    except SiteError as error:
        return str(error)
    except (Exception, CheckpointException) as error:  # torch wraps whatever a rank met into its own types
        return f"checkpoint {directory}: {_innermost(error)}"
    return ""


def _innermost(error: BaseException) -> str:
    failures = getattr(error, "failures", None)
    if failures:
        error = next(iter(failures.values()))[0]
    return f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}"


def _problem(directory: Path, world: World, head: dict[str, Any]) -> str:
    """Compare this rank's share of the files with what was written down about them; fills `head`."""
    try:
        head.update(_json(directory / _MARK))
        if head["format"] != _FORMAT:
            return f"checkpoint {directory} has format {head['format']}, expected {_FORMAT}"
        files: dict[str, list[Any]] = {}
        for rank in range(head["ranks"]):
            files |= _json(directory / f"files_{rank}.json")
        for name in sorted(files)[world.rank :: world.size]:
            if not (directory / name).is_file():
                return _damaged(directory, f"{name} is missing")
            if _seal(directory / name) != files[name]:
                return _damaged(directory, f"{name} is not what was written")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return _damaged(directory, str(error))
    return ""


def _damaged(directory: Path, detail: str) -> str:
    return str(SiteError(f"checkpoint {directory} is damaged or incomplete: {detail}", _FIX))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{path.name} is missing") from None
    except ValueError:
        raise ValueError(f"{path.name} does not parse") from None


def _seal(path: Path) -> list[Any]:
    """[bytes, checksum]"""
    hasher = xxhash.xxh3_64()
    with path.open("rb") as file:
        while block := file.read(_HASH_BYTES):
            hasher.update(block)
        return [file.tell(), hasher.hexdigest()]
