"""Settings without effect: one table of keys, when they do nothing, and why. Owns the warnings; forbids nothing.

A key counts only if the user wrote it and its value is not the default: nobody is warned of what they did not ask for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from rollart_hpc.config.key_names import key_of
from rollart_hpc.config.pools import has_engines
from rollart_hpc.config.schema import PoolConfig, RunConfig, TaskConfig

Section = Any  # the task or pool that the * of a pattern stands for, else the whole run


class Idle(NamedTuple):
    """`keys` have no effect if `holds`; a * in them is the name of a task or pool, which `holds` gets."""

    keys: tuple[str, ...]
    holds: Callable[[RunConfig, Section], bool]
    why: str


def _never_engines(run: RunConfig, pool: PoolConfig) -> bool:
    return pool.engines == 0 and pool.elastic.max == 0


TABLE = (
    Idle(
        ("trainer.lora.alpha", "trainer.lora.targets"),
        lambda run, _: run.trainer.lora.rank == 0,
        "trainer.lora.rank is 0, so all weights are trained",
    ),
    Idle(
        ("trainer.min_lr_ratio",),
        lambda run, _: run.trainer.schedule == "constant",
        "trainer.schedule is constant",
    ),
    Idle(
        ("algorithm.loss_params.clip_low", "algorithm.loss_params.clip_high", "algorithm.loss_params.dual_clip"),
        lambda run, _: run.algorithm.decoupled and run.algorithm.updates * run.algorithm.epochs == 1,
        "with decoupled: true and one update per batch nothing is clipped",
    ),
    Idle(
        ("algorithm.kl_estimator", "algorithm.kl_in", "algorithm.kl_target", "algorithm.kl_refresh"),
        lambda run, _: run.algorithm.kl == 0,
        "algorithm.kl is 0, so there is no KL penalty",
    ),
    Idle(
        ("algorithm.kl_weighted",),
        lambda run, _: run.algorithm.kl == 0 or run.algorithm.kl_in == "reward",
        "there is no KL in the loss",
    ),
    Idle(
        ("algorithm.kl_horizon",),
        lambda run, _: run.algorithm.kl_target == 0,
        "algorithm.kl_target is 0, so the coefficient stays",
    ),
    Idle(
        ("algorithm.critic.lr", "algorithm.critic.warmup_steps", "algorithm.critic.clip"),
        lambda run, _: not run.algorithm.needs_critic,
        "the estimator needs no critic",
    ),
    Idle(
        ("algorithm.estimator",),
        lambda run, _: run.algorithm.loss == "raft_pp",
        "loss raft_pp uses rewards, not advantages",
    ),
    Idle(
        ("validation.every", "validation.temperature", "validation.samples"),
        lambda run, _: run.validation.plays == 0,
        "validation.plays is 0, so the run never validates",
    ),
    Idle(
        ("validation.samples",),
        lambda run, _: run.validation.plays > 0 and run.validation.temperature == 0,
        "validation.temperature is 0, so all plays of a seed are the same",
    ),
    Idle(
        ("validation.every",),
        lambda run, _: run.validation.plays > 0 and run.validation.every >= run.steps > 0,
        "the run is not longer than that; it validates before the first step and after the last",
    ),
    Idle(
        ("model.path",),
        lambda run, _: run.model.kind == "tiny",
        "model.kind is tiny, and the run makes that model itself; set model.kind=directory",
    ),
    Idle(
        ("weights.collective",),
        lambda run, _: run.weights.transport == "direct",
        "it is used between relays, and weights.transport: direct has none",
    ),
    Idle(
        ("reward.elastic.queue_per_worker", "reward.elastic.settle_s", "reward.elastic.idle_s",
         "reward.elastic.time_minutes"),
        lambda run, _: run.reward.elastic.max_workers == 0,
        "reward.elastic.max_workers is 0",
    ),
    Idle(
        ("launch.engine_jobs", "launch.wait_s"),
        lambda run, _: run.launch.mode == "het",
        "launch.mode is het: all nodes belong to one job",
    ),
    Idle(
        ("pools.*.elastic.turns_per_engine", "pools.*.elastic.settle_s", "pools.*.elastic.idle_s"),
        lambda run, pool: pool.elastic.max == 0,
        "elastic.max is 0, so the pool is not elastic",
    ),
    Idle(
        ("pools.*.elastic.turns_per_engine", "pools.*.elastic.settle_s", "pools.*.elastic.idle_s"),
        lambda run, pool: 0 < pool.elastic.max == pool.elastic.min,
        "elastic.min equals elastic.max, so the number of engines never changes",
    ),
    Idle(
        ("pools.*.speed",),
        lambda run, pool: sum(map(has_engines, run.pools.values())) <= 1,
        "no other pool has engines to compare it with",
    ),
    Idle(
        ("pools.*.tensor_parallel", "pools.*.class", "pools.*.engine.*"),
        _never_engines,
        "the pool has no engines",
    ),
    Idle(
        ("tasks.*.affinity",),
        lambda run, task: sum(map(has_engines, run.pools.values())) == 1,
        "only one pool has engines, and it serves every task",
    ),
    Idle(
        ("tasks.*.group_filter",),
        lambda run, task: task.weight == 0,
        "its weight is 0, and only groups to train on are filtered",
    ),
    Idle(
        ("tasks.*.filter_tolerance",),
        lambda run, task: task.group_filter != "same_reward",
        "only group_filter same_reward compares rewards",
    ),
    Idle(
        ("tasks.*.filter_tries",),
        lambda run, task: task.group_filter == "none",
        "group_filter is none",
    ),
)  # fmt: skip


_COMPARE_WITHIN = ("grpo", "dr_grpo", "rloo", "max_rl", "reinforce_pp_baseline", "lite_ppo")


def find_idle(config: RunConfig, said: Mapping[str, Any]) -> Iterator[str]:
    """A line for each key that the user wrote (`said`) and that does nothing."""
    for key, value in _leaves(said):
        for idle in TABLE:
            if any(fnmatchcase(key, pattern) for pattern in idle.keys):
                section = _section(config, key)
                if section is not None and not _is_default(config, key) and idle.holds(config, section):
                    yield f"{key}: {_shown(value)} has no effect: {idle.why}"


def find_poor(config: RunConfig) -> Iterator[str]:
    """Values that do something, but hardly what was meant."""
    size, estimator = config.flow.group_size, config.algorithm.estimator
    if size == 1 and estimator in _COMPARE_WITHIN and config.algorithm.loss != "raft_pp":
        yield (
            f"flow.group_size: 1 with estimator {estimator}: a reward is compared with itself, every advantage is 0, "
            "so nothing is learned; set flow.group_size=8, or algorithm.estimator=reinforce"
        )
    if 0 < config.steps <= config.trainer.warmup_steps:
        yield (
            f"trainer.warmup_steps: {config.trainer.warmup_steps}, but the run has {config.steps} steps: the learning "
            "rate does not reach trainer.lr before the end"
        )
    for name, task in config.tasks.items():
        yield from _poor_task(config, name, task)


def _poor_task(config: RunConfig, name: str, task: TaskConfig) -> Iterator[str]:
    if task.weight == 0 and any(other.weight for other in config.tasks.values()):
        left = "only validated" if config.validation.plays else "not used at all"
        yield f"tasks.{name}.weight: 0: never trained on, {left}; tasks.{name}=null drops it"


def _section(config: RunConfig, key: str) -> Section | None:
    head, *rest = key.split(".")
    if head not in ("tasks", "pools"):
        return config
    return getattr(config, head).get(rest[0])


def _is_default(config: RunConfig, key: str) -> bool:
    """False for keys of a map: it has no defaults."""
    here: Any = config
    for name in key.split("."):
        if isinstance(here, Mapping):
            here = here.get(name)
        elif is_dataclass(here):
            known = {key_of(f.name): f for f in fields(here)}.get(name)
            if known is None:
                return False
            here = getattr(here, known.name)
            if not is_dataclass(here) and known.default is not MISSING:
                return bool(here == known.default)
    return not here


def _leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        here = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping):
            yield from _leaves(value, here)
        else:
            yield here, value


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
