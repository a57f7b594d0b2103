"""Tasks whose pools the run chooses (`affinity: auto`). Owns what may be chosen, and what that needs of the site."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rollart_hpc.config.classes import homes_of
from rollart_hpc.config.model_shape import read_shape
from rollart_hpc.config.pools import has_engines, pools_for
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.hardware import ANY, AUTO, PROFILES

_INSTEAD = "or set affinity to compute, bandwidth, any or the name of a pool"


def automatic_tasks(config: RunConfig) -> list[str]:
    return [name for name, task in config.tasks.items() if task.affinity == AUTO]


def options_of(config: RunConfig) -> dict[str, tuple[str, ...]]:
    """What may be chosen for a task: values of `affinity` with their pools, none of which has the same as another."""
    found: dict[frozenset[str], str] = {}
    for name in (ANY, *PROFILES, *config.pools):
        pools = frozenset(pools_for(config, name) or config.pools) & set(config.pools)
        if pools:
            found.setdefault(pools, name)
    return {name: () if name == ANY else pools_for(config, name) for name in found.values()}


def find_auto_problems(config: RunConfig, site: SiteConfig) -> Iterator[str]:
    """Figures that the choice needs and that nothing says."""
    tasks = automatic_tasks(config)
    if not tasks:
        return
    key = f"tasks.{tasks[0]}.affinity: auto"
    for pool, names in homes_of(config, site).pools.items():
        if not (has_engines(config.pools[pool]) or config.pools[pool].elastic.max):
            continue
        known = [name for name in names if name in site.classes]
        if not known:
            yield (
                f"{key} compares GPUs, but pool {pool} has no class of site {site.name}; set pools.{pool}.class, or "
                f"add the class with its gpu to the site file, {_INSTEAD}"
            )
        for name in known:
            gpu = site.gpu(name)
            if not (gpu.tflops and gpu.bandwidth_tb_s):
                yield (
                    f"{key} compares GPUs, but the figures of class {name} (pool {pool}) are unknown; set gpu, or "
                    f"tflops and bandwidth_tb_s, of the class in the site file, {_INSTEAD}"
                )
    model = Path(config.model.path)
    if config.model.kind == "directory" and (model / "config.json").is_file() and read_shape(model) is None:
        yield f"{key} needs a dense decoder: {model}/config.json describes another model; {_INSTEAD[3:]}"
