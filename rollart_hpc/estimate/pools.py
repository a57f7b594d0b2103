"""What engines of each pool of a run cost, from the figures of the site's GPUs. Made once, when a run begins.

A tiny model is all overhead on any GPU, so that no class would be better: it counts as a model of 8B parameters.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path
from statistics import fmean

from rollart_hpc.config.classes import homes_of
from rollart_hpc.config.model_shape import ModelShape, read_shape
from rollart_hpc.config.modes import preset_of
from rollart_hpc.config.pools import engine_of
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.estimate.roofline import Pace, kv_bytes, pace_of, weight_bytes
from rollart_hpc.estimate.shapes import SHAPES
from rollart_hpc.hardware import Gpu

TINY_COUNTS_AS = "qwen3-8b"
_USABLE = 0.9  # of a GPU's memory, as vLLM's default
_GB = 1e9


@dataclass(frozen=True)
class EngineFigures:
    pace: Pace
    running: int  # turns that decode at once, if their KV fits
    kv_tokens: int  # that fit beside the weights; 0 = unknown

    def decoding(self, context: float) -> int:
        """Turns of this length that decode at once."""
        return max(1, min(self.running, int(self.kv_tokens / max(context, 1.0)))) if self.kv_tokens else self.running


def engine_figures(config: RunConfig, site: SiteConfig, shape: ModelShape | None) -> dict[str, EngineFigures]:
    """By pool; pools without the figures of a class are left out."""
    if shape is None:
        return {}
    engines = max(1, sum(max(pool.engines, pool.elastic.max) for pool in config.pools.values()))
    running = -(-_in_progress(config) // engines)
    return {
        pool: _figures(shape, config, pool, gpus, running)
        for pool, names in homes_of(config, site).pools.items()
        if (gpus := [site.gpu(name) for name in names if name in site.classes])
        and all(gpu.tflops and gpu.bandwidth_tb_s for gpu in gpus)
    }


def shape_for(config: RunConfig, model: Path) -> ModelShape | None:
    return SHAPES[TINY_COUNTS_AS] if config.model.kind == "tiny" else read_shape(model)


def _in_progress(config: RunConfig) -> int:
    """Trajectories that may be in progress at once."""
    preset, flow = preset_of(config.mode), config.flow
    alpha = flow.alpha if preset.alpha is None else preset.alpha
    return min((1 + alpha) * flow.groups_per_step * flow.group_size, config.env.workers * config.env.slots)


def _figures(shape: ModelShape, config: RunConfig, pool: str, gpus: list[Gpu], running: int) -> EngineFigures:
    tensor = config.pools[pool].tensor_parallel
    paces = [pace_of(shape, gpu, tensor) for gpu in gpus]
    pace = Pace(*(fmean(figures) for figures in zip(*map(astuple, paces), strict=True)))
    room = min(gpu.memory_gb for gpu in gpus) * _GB * _USABLE * tensor - weight_bytes(shape)
    return EngineFigures(
        pace, min(engine_of(config, pool).max_running, max(1, running)), max(0, int(room / kv_bytes(shape)))
    )
