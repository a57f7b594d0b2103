"""The trainer that a config names. Imports a backend only when it is asked for."""

from __future__ import annotations

from pathlib import Path

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import SiteError
from rollart_hpc.extras import install
from rollart_hpc.trainers.contract import Trainer
from rollart_hpc.trainers.world import World


def make_trainer(config: RunConfig, model_dir: Path, world: World) -> Trainer:
    if config.trainer.kind == "fsdp":
        from rollart_hpc.trainers.fsdp.trainer import FsdpTrainer

        return FsdpTrainer(config, model_dir, world)
    try:
        from rollart_hpc.trainers.megatron.trainer import make_trainer as make_megatron

        return make_megatron(config, model_dir, world)
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(("megatron", "transformer_engine")):
            raise
        what = f"trainer.kind is megatron, but {error.name} is not installed"
        raise SiteError(what, f"{install('megatron')}, and transformer_engine on GPUs") from None
