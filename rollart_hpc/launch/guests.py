"""What runs on a node that somebody offers to a run (`rollart-hpc join`): as many engines of one pool as fit, and a
relay. Owns that decision; starts nothing."""

from __future__ import annotations

from collections.abc import Mapping

from rollart_hpc.config.classes import homes_of
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import UserError
from rollart_hpc.launch.devices import assign_devices
from rollart_hpc.launch.packing import Needs
from rollart_hpc.launch.plan import Proc
from rollart_hpc.launch.roster import engine, has_relays
from rollart_hpc.launch.sizes import relay_needs
from rollart_hpc.wire.messages import Offer


def plan_guest(offer: Offer, node: str, pool: str, config: RunConfig, site: SiteConfig) -> tuple[Proc, ...]:
    """Raises if not even one engine fits: an engine like the pool's others, on GPUs if they are."""
    has_gpus = any(site.classes[name].gpus for name in homes_of(config, site).pools[pool])
    needs = engine(config, "", pool, "", has_gpus).needs
    relay = relay_needs(config) if has_relays(config) else None
    count = _num_fitting(needs, relay or Needs(), offer)
    if not count:
        has = Needs(offer.cpus, len(offer.gpus), offer.memory_gb)
        raise UserError(
            f"an engine of pool {pool} needs {needs}, and the node offers {has}",
            "offer a larger share of the node, or another pool (--pool)",
        )
    engines = [Proc(f"engine-{node}-{i}", "engine", pool, node, pool=pool, needs=needs) for i in range(count)]
    relays = [Proc(f"relay-{node}", "relay", pool, node, needs=relay)] if relay is not None else []
    return assign_devices([*engines, *relays])


def _num_fitting(needs: Needs, relay: Needs, offer: Offer) -> int:
    """One engine may share the CPUs of its node with the relay: a small allocation has no more."""
    most = [(offer.memory_gb - relay.memory_gb) // needs.memory_gb] if needs.memory_gb else []
    most += [len(offer.gpus) // needs.gpus] if needs.gpus else []
    most += [max((offer.cpus - relay.cpus) // max(needs.cpus, 1), 1 if offer.cpus >= needs.cpus else 0)]
    return max(0, int(min(most)))


def neediest_pool(config: RunConfig, turns: Mapping[str, int], num_engines: Mapping[str, int]) -> str:
    """The pool with the most turns per engine; without turns, the one with the fewest of its engines."""

    def need(pool: str) -> tuple[float, float]:
        wanted = max(1, config.pools[pool].engines)
        return turns.get(pool, 0) / max(1, num_engines.get(pool, 0)), 1 - num_engines.get(pool, 0) / wanted

    return max(config.pools, key=need)
