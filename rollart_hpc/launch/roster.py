"""The processes of a run, role by role, and what each needs. Owns their names; `launch.plan` places them."""

from __future__ import annotations

from collections.abc import Iterable

from rollart_hpc.config.pools import engine_of
from rollart_hpc.config.schema import EnvConfig, RewardConfig, RunConfig
from rollart_hpc.launch.packing import Needs
from rollart_hpc.launch.planned import CONTROLLER, Proc
from rollart_hpc.launch.sizes import controller_needs, engine_needs, relay_needs, trainer_needs


def controller(config: RunConfig, hardware: str) -> Proc:
    return Proc(CONTROLLER, "controller", hardware, hardware, needs=controller_needs(config))


def envs(config: RunConfig, hardware: str) -> list[Proc]:
    needs = _stated(config.env)
    return [Proc(f"env-{i}", "env", hardware, hardware, needs=needs) for i in range(config.env.workers)]


def rewards(config: RunConfig, hardware: str) -> list[Proc]:
    needs = _stated(config.reward)
    return [Proc(f"reward-{i}", "reward", hardware, hardware, needs=needs) for i in range(config.reward.workers)]


def engines(config: RunConfig, pool: str, hardware: str, has_gpus: bool = False) -> list[Proc]:
    names = (f"engine-{pool}-{i}" for i in range(config.pools[pool].engines))
    return [engine(config, name, pool, hardware, has_gpus) for name in names]


def elastic_engines(config: RunConfig, pool: str, hardware: str, has_gpus: bool = False) -> list[Proc]:
    names = (f"engine-{pool}-elastic-{i}" for i in range(config.pools[pool].elastic.max))
    return [engine(config, name, pool, hardware, has_gpus) for name in names]


def engine(config: RunConfig, name: str, pool: str, hardware: str, has_gpus: bool = False) -> Proc:
    gpus = config.pools[pool].tensor_parallel if has_gpus and engine_of(config, pool).device != "cpu" else 0
    return Proc(name, "engine", hardware, hardware, pool=pool, needs=engine_needs(config, pool, gpus))


def trainers(config: RunConfig, hardware: str, has_gpus: bool = False) -> list[Proc]:
    ranks = config.trainer.ranks
    needs = trainer_needs(config, 1 if has_gpus and config.trainer.device != "cpu" else 0)
    return [
        Proc(f"trainer-{rank}", "trainer", hardware, hardware, rank=rank, ranks=ranks, needs=needs)
        for rank in range(ranks)
    ]


def relays(config: RunConfig, workers: Iterable[Proc]) -> list[Proc]:
    """One for each node that makes or uses weights."""
    if not has_relays(config):
        return []
    homes = {proc.node: proc.hardware for proc in workers if holds_weights(proc)}
    needs = relay_needs(config)
    return [Proc(f"relay-{node}", "relay", hardware, node, needs=needs) for node, hardware in homes.items()]


def relay_beside(config: RunConfig, proc: Proc) -> Needs:
    """What the node of this process needs for its relay."""
    return relay_needs(config) if has_relays(config) and holds_weights(proc) else Needs()


def has_relays(config: RunConfig) -> bool:
    return config.weights.transport == "staged"


def holds_weights(proc: Proc) -> bool:
    """Among the trainer's ranks, only rank 0 publishes weights."""
    return proc.role == "engine" or (proc.role == "trainer" and proc.rank == 0)


def _stated(section: EnvConfig | RewardConfig) -> Needs:
    return Needs(section.cpus, memory_gb=section.memory_gb)
