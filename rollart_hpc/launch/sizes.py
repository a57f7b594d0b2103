"""CPUs and memory that processes need because of the model's size. Pure: knows no site and reads no file.

    controller   more of both for a large model
    trainer      float32 weights, gradients and AdamW's two averages, divided by the ranks
    engine       on GPUs buffers per GPU, on CPU its weights
    relay        three versions of the weights in shared memory, as the trainer publishes them

These are floors. What the run or the site sets wins, and `find_shortfalls` says what is below its floor. If the size of
the model is unknown, it counts as tiny.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

from rollart_hpc.backends.registry import find
from rollart_hpc.config.pools import engine_of
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.launch.packing import Needs

GB = 2**30
LARGE_B = 1.0  # billions of parameters from which processes get more than one CPU
_ITEM_BYTES = {"float32": 4, "bfloat16": 2}
_TRAINED_BYTES = 16  # per parameter: weight, gradient, two averages, all float32
_HOST_GB_PER_GPU = 8.0  # of an engine: CUDA's context, pinned buffers, the libraries of a worker
_SPARE = 1.25  # of an engine on CPU, besides its weights


class _Section(Protocol):
    """A section of the configuration that says what its processes need; 0 = from the model's size."""

    cpus: int
    memory_gb: float


def controller_needs(config: RunConfig) -> Needs:
    return _chosen(config.controller, _controller(config))


def trainer_needs(config: RunConfig, gpus: int) -> Needs:
    return _chosen(config.trainer, _trainer(config), gpus)


def engine_needs(config: RunConfig, pool: str, gpus: int) -> Needs:
    return _chosen(engine_of(config, pool), _engine(config, pool, gpus), gpus)


def relay_needs(config: RunConfig) -> Needs:
    return _chosen(config.weights, _relay(config))


def find_shortfalls(config: RunConfig, engine_gpus: dict[str, int]) -> Iterator[str]:
    """Settings below their floor. `engine_gpus`: GPUs of an engine in each pool."""
    yield from _short(config, "controller", config.controller, _controller(config))
    yield from _short(config, "trainer", config.trainer, _trainer(config))
    yield from _short(config, "weights", config.weights, _relay(config))
    for pool, gpus in engine_gpus.items():
        where = f"pools.{pool}.engine" if config.pools[pool].engine else "engine"
        yield from _short(config, where, engine_of(config, pool), _engine(config, pool, gpus))


def _controller(config: RunConfig) -> Needs:
    return Needs(4, memory_gb=8.0) if _is_large(config) else Needs(1, memory_gb=1.0)


def _trainer(config: RunConfig) -> Needs:
    per_parameter = _ITEM_BYTES["float32"] if config.trainer.lora.rank else _TRAINED_BYTES
    shards = find("trainer", config.trainer.kind).shards
    holders = shards(config).ranks if shards else config.trainer.ranks
    return _floor(config, Needs(1, memory_gb=2.0), 4, per_parameter / holders)


def _engine(config: RunConfig, pool: str, gpus: int) -> Needs:
    least = Needs(1, memory_gb=2.0)
    if not gpus:
        return _floor(config, least, 4, _SPARE * _ITEM_BYTES[engine_of(config, pool).dtype])
    return Needs(gpus + 2, memory_gb=_HOST_GB_PER_GPU * gpus) if _is_large(config) else least


def _relay(config: RunConfig) -> Needs:
    return _floor(config, Needs(1, memory_gb=1.0), 2, 3 * _ITEM_BYTES[config.trainer.dtype])


def _floor(config: RunConfig, least: Needs, cpus_if_large: int, bytes_per_parameter: float) -> Needs:
    """A few MB of weights fit into what every process has anyway."""
    more_gb = config.model.parameters_b * 1e9 * bytes_per_parameter / GB
    memory_gb = least.memory_gb + (math.ceil(more_gb) if more_gb > 0.25 else 0)
    return Needs(cpus_if_large if _is_large(config) else least.cpus, memory_gb=memory_gb)


def _is_large(config: RunConfig) -> bool:
    return config.model.parameters_b >= LARGE_B


def _chosen(section: _Section, floor: Needs, gpus: int = 0) -> Needs:
    return Needs(section.cpus or floor.cpus, gpus, section.memory_gb or floor.memory_gb)


def _short(config: RunConfig, where: str, section: _Section, floor: Needs) -> Iterator[str]:
    model = f"a model of {config.model.parameters_b:.3g} billion parameters"
    if 0 < section.memory_gb < floor.memory_gb:
        yield (
            f"{where}.memory_gb: {section.memory_gb:g} is less than the {floor.memory_gb:g} GB that {model} needs; "
            "raise it, or set it to 0"
        )
    if 0 < section.cpus < floor.cpus:
        yield f"{where}.cpus: {section.cpus} is few for {model}; {floor.cpus} or more are better"
