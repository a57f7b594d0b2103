"""Checks of trainers: a step on the devices at hand against one rank on the CPU in float32; checkpoints."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.selftest.checks import Here
from rollart_hpc.selftest.heavy.ranks import make_config, make_groups, make_model, run_ranks
from rollart_hpc.trainers.kinds import make_trainer
from rollart_hpc.trainers.world import World

STEPS = 2
CLOSE = {"float32": 1e-4, "bfloat16": 3e-2}  # of the loss; weights move by at most lr per step
WEIGHTS_CLOSE = {"float32": 2e-4, "bfloat16": 6e-3}


class Trained(NamedTuple):
    losses: list[float]
    norms: list[float]
    digest: str
    weights: dict[str, torch.Tensor]


def fsdp(here: Here) -> dict[str, Any]:
    if here.device == "cpu":
        return _against_one(here, 2, make_config("cpu"))
    exact = _against_one(here, here.gpus, make_config("cuda"))
    fast = _against_one(here, here.gpus, make_config("cuda", dtype="bfloat16"))
    return {"float32": exact, "bfloat16": fast}


def megatron(here: Here) -> dict[str, Any]:
    if here.device == "cpu":
        return _against_one(here, 1, make_config("cpu", "megatron"))
    tensor = 2 if here.gpus % 2 == 0 else 1
    return _against_one(here, here.gpus, make_config("cuda", "megatron", "bfloat16", tensor_parallel=tensor))


def checkpoint(here: Here) -> dict[str, Any]:
    count = 2 if here.device == "cpu" else here.gpus
    model, place = make_model(here.scratch / "model"), here.scratch / "checkpoint"
    config = make_config(here.device)
    saved = run_ranks(count, here.device, here.scratch, partial(train, config, model, steps=1, save=place))[0]
    straight = run_ranks(count, here.device, here.scratch, partial(train, config, model, steps=STEPS))[0]
    again = run_ranks(1, here.device, here.scratch, partial(train, config, model, steps=0, load=place))[0]
    gone_on = run_ranks(count, here.device, here.scratch, partial(train, config, model, steps=1, load=place))[0]
    assert again.digest == saved.digest, f"restored {again.digest}, saved {saved.digest}"
    off = _apart(gone_on.weights, straight.weights)
    assert off <= WEIGHTS_CLOSE["float32"], f"the next step differs by {off:g}"
    return {"ranks": count, "bytes": sum(path.stat().st_size for path in place.iterdir()), "next_step_off": off}


def train(
    config: RunConfig, model: Path, world: World, *, steps: int, save: Path | None = None, load: Path | None = None
) -> Trained:
    config.trainer.ranks = world.size
    trainer = make_trainer(config, model, world)
    if load is not None:
        trainer.load(load)
    found = []
    for seed in range(trainer.version, trainer.version + steps):
        trainer.accumulate(make_groups(seed))
        found.append(trainer.step().metrics)
    if save is not None:
        trainer.save(save)
    weights = {name: tensor.detach().float().cpu().clone() for name, tensor in trainer.export()}
    losses, norms = ([metrics[name] for metrics in found] for name in ("loss", "grad_norm"))
    return Trained(losses, norms, trainer.digest, weights)


def _against_one(here: Here, ranks: int, config: RunConfig) -> dict[str, Any]:
    model = here.scratch / "model"
    if not model.exists():
        make_model(model)
    tried = run_ranks(ranks, here.device, here.scratch, partial(train, config, model, steps=STEPS))[0]
    exact = run_ranks(1, "cpu", here.scratch, partial(train, make_config("cpu"), model, steps=STEPS))[0]
    dtype = config.trainer.dtype
    loss_off = max(abs(a - b) for a, b in zip(tried.losses, exact.losses, strict=True))
    weights_off = _apart(tried.weights, exact.weights)
    assert loss_off <= CLOSE[dtype], f"{dtype}: losses {tried.losses}, expected {exact.losses}"
    assert weights_off <= WEIGHTS_CLOSE[dtype], f"{dtype}: weights differ by {weights_off:g} after {STEPS} steps"
    return {"ranks": ranks, "loss_off": loss_off, "weights_off": weights_off, "grad_norms": [tried.norms, exact.norms]}


def _apart(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    assert ours.keys() == theirs.keys(), f"tensors differ: {sorted(ours.keys() ^ theirs.keys())}"
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)
