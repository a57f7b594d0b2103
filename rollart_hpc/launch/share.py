"""What a run gets of one hardware class, while the plan is made. Owns its processes and the limits of the class.

All nodes of a class are requested alike. With whole nodes the request is everything that a node has, whatever the
processes need.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import UserError
from rollart_hpc.launch.devices import assign_devices
from rollart_hpc.launch.packing import Needs, Pack, pack
from rollart_hpc.launch.planned import Component, Proc
from rollart_hpc.launch.roster import relay_beside, relays

SUPERVISOR_NEEDS = Needs(cpus=1, memory_gb=1.0)  # the batch script, on the first node of the first component
NODE = "{hardware}-{index}"


class Share:
    def __init__(self, name: str, config: RunConfig, site: SiteConfig, is_first: bool) -> None:
        self.name, self.procs = name, list[Proc]()
        self._config, self._site, self._own = config, site, site.classes[name]
        self._reserved = self._on_cores(SUPERVISOR_NEEDS) if is_first else Needs()
        exclusive = {**site.options(name).sbatch, **config.job.sbatch}.get("exclusive")
        self._is_whole = self._own.whole_nodes or exclusive is True

    @property
    def has_gpus(self) -> bool:
        return self._own.gpus > 0

    def take(self, procs: Sequence[Proc]) -> None:
        self.procs += self.on_cores(procs)

    def on_cores(self, procs: Sequence[Proc]) -> list[Proc]:
        """Every process gets whole cores, so the job must request whole cores too."""
        return [replace(proc, needs=self._on_cores(proc.needs)) for proc in procs]

    def room_for(self, procs: Sequence[Proc]) -> int:
        """How many of these like processes fit in addition."""
        return bisect_left(range(1, len(procs) + 1), True, key=lambda count: not self._fits(procs[:count]))

    def _fits(self, more: Sequence[Proc]) -> bool:
        trial = Share(self.name, self._config, self._site, self._reserved != Needs())
        trial.procs = list(self.procs)
        trial.take(more)
        try:
            trial.component(0)
        except UserError:
            return False
        return True

    def component(self, index: int, first_node: int = 0, *, is_limited: bool = True) -> Component:
        """Raises `UserError` if the processes exceed the limits of the class, which count for one job."""
        own, where = self._own, f"class {self.name} (partition {self._own.partition})"
        node = Needs(own.cpus, own.gpus, own.memory_gb or float("inf"))
        packs = [Pack(p.name, p.needs, self._on_cores(relay_beside(self._config, p))) for p in self.procs]
        placed, per_node = pack(packs, node, own.max_nodes if is_limited else 0, self._reserved, where)
        per_node = node if self._is_whole else per_node
        nodes = tuple(NODE.format(hardware=self.name, index=first_node + i) for i in range(max(placed.values()) + 1))
        procs = [replace(proc, node=nodes[placed[proc.name]]) for proc in self.procs]
        procs += self.on_cores(relays(self._config, procs))
        found = Component(
            index,
            self.name,
            own.partition,
            nodes,
            Needs(per_node.cpus, per_node.gpus, per_node.memory_gb if own.memory_gb else 0.0),
            assign_devices(procs),
            self._site.gpu(self.name).cost * len(nodes) * (per_node.gpus if own.gpus else 1),
            max_gpus=own.max_gpus,
            is_whole=self._is_whole,
        )
        if is_limited:
            self._need_quota(found, where)
        return found

    def _need_quota(self, found: Component, where: str) -> None:
        limit = self._own.max_gpus
        if limit and found.num_gpus > limit:
            whole = " whole" if self._is_whole else ""
            raise UserError(
                f"the run asks for {found.num_gpus} GPUs of {where}: {len(found.nodes)}{whole} nodes with "
                f"{found.per_node.gpus} each; max_gpus is {limit}",
                "request fewer engines or ranks, or another class for some of them, or raise max_gpus in the site file",
            )

    def _on_cores(self, needs: Needs) -> Needs:
        return needs.on_cores(self._own.threads_per_core)
