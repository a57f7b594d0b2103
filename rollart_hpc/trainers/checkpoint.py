"""A trainer's part of a checkpoint. Owns its files; knows nothing of steps or of other parts.

    DIRECTORY/
      __<rank>_<i>.distcp, .metadata     torch.distributed.checkpoint: model, optimizer
      files_<rank>.json, trainer.json    what was written, see `seals`

Ranks agree after every phase, so a rank that fails never leaves the others waiting. It may be loaded by another
number of ranks than wrote it. Among themselves torch's planners exchange pickled plans over the ranks' own group.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import load as load_distributed
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed
from transformers import PreTrainedModel

from rollart_hpc.errors import SiteError
from rollart_hpc.files import make_directory
from rollart_hpc.trainers import seals
from rollart_hpc.trainers.model import saved_tensors
from rollart_hpc.trainers.world import World

log = logging.getLogger(__name__)

_METADATA = ".metadata"


class State(NamedTuple):
    """What is saved and restored in place."""

    model: PreTrainedModel
    optimizer: torch.optim.Optimizer


def save(directory: Path, state: State, world: World, *, version: int, digest: str) -> None:
    has_stepped = bool(state.optimizer.state)

    def write() -> None:
        make_directory(directory)
        save_distributed(_tensors(state, has_stepped), checkpoint_id=directory)
        names = [path.name for path in directory.glob(f"__{world.rank}_*.distcp")]
        seals.write_files(directory, world.rank, names + [_METADATA] * (world.rank == 0))

    def finish() -> None:
        if world.rank == 0:
            head = seals.Head(version=version, digest=digest, ranks=world.size, has_stepped=has_stepped)
            seals.write_head(directory, head)

    _together(world, directory, write)
    _together(world, directory, finish)


def load(directory: Path, state: State, world: World) -> seals.Head:
    """Nothing is touched before all files proved whole. The caller compares the digest afterwards."""
    heads: list[seals.Head] = []
    _together(world, directory, lambda: heads.append(seals.check(directory, world.rank, world.size)))
    (head,) = heads

    def read() -> None:
        state.optimizer.state.clear()
        tensors = _tensors(state, head.has_stepped)  # those of the model are filled in place
        load_distributed(tensors, checkpoint_id=directory)
        if head.has_stepped:
            set_optimizer_state_dict(state.model, state.optimizer, tensors["optimizer"])

    _together(world, directory, read)
    return head


def _tensors(state: State, has_stepped: bool) -> dict[str, Any]:
    """An optimizer that never stepped has no state, and asking torch for it would make one up."""
    tensors: dict[str, Any] = {"model": {name: tensor.detach() for name, tensor in saved_tensors(state.model)}}
    if has_stepped:
        tensors["optimizer"] = get_optimizer_state_dict(state.model, state.optimizer)
    return tensors


def _together(world: World, directory: Path, action: Callable[[], None]) -> None:
    """All ranks do it, or all raise SiteError."""
    problem: SiteError | None = None
    try:
        action()
    except SiteError as error:
        problem = error
    except (Exception, CheckpointException) as error:  # torch wraps whatever a rank met into its own types
        log.debug("checkpoint %s", directory, exc_info=error)
        problem = SiteError(f"checkpoint {directory}: {_innermost(error)}")
    world.all_good(problem)


def _innermost(error: BaseException) -> str:
    failures = error.failures if isinstance(error, CheckpointException) else {}
    if failures:
        error = next(iter(failures.values()))[0]
    first_line = (str(error) or "no details").splitlines()[0]
    return f"{type(error).__name__}: {first_line[:300]}"
