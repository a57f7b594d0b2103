"""Makes the trainer of the configured kind. Imports only that backend."""

from __future__ import annotations

from pathlib import Path

from rollart_hpc.backends.registry import find, load
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.trainers.contract import Trainer
from rollart_hpc.trainers.world import World


def make_trainer(config: RunConfig, model_dir: Path, world: World) -> Trainer:
    backend = find("trainer", config.trainer.kind)
    trainer: Trainer = load(backend, backend.make)(config, model_dir, world)
    return trainer
