"""What the doctor looks at: the classes that a run would use, and the weights that their nodes would hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.hardware import BANDWIDTH, COMPUTE, CPU
from rollart_hpc.launch.plan import make_plan

VERSIONS = 3  # in a node's shared memory: two that engines may use, and one that arrives
_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf")


@dataclass(frozen=True)
class Scope:
    classes: tuple[str, ...]  # the controller's first, as in a run
    version_bytes: int = 0  # of one version of the weights; 0 = unknown

    @property
    def shm_bytes(self) -> int:
        return VERSIONS * self.version_bytes


def scope_of_site(site: SiteConfig) -> Scope:
    """The classes that serve a need: others are used only by runs that name them."""
    serving = [site.serving(need) for need in (CPU, COMPUTE, BANDWIDTH)]
    return Scope(tuple(name for name in dict.fromkeys(serving) if name))


def scope_of_run(config: RunConfig, site: SiteConfig) -> Scope:
    """The classes of its plan, and the size of its model as far as the files of a directory show it."""
    classes = (component.hardware for component in make_plan(config, site).components)
    return Scope(tuple(dict.fromkeys(classes)), _size(Path(config.model.path)) if config.model.path else 0)


def _size(directory: Path) -> int:
    return max((sum(file.stat().st_size for file in directory.glob(kind)) for kind in _WEIGHTS), default=0)
