"""Rules between keys whose values are legal one by one. Owns what makes a run impossible, or probably a mistake."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rollart_hpc.config.algorithm_rules import batch_scoped, find_algorithm_conflicts
from rollart_hpc.config.backends import find_backend_conflicts, find_backend_oddities
from rollart_hpc.config.check import nearest
from rollart_hpc.config.effects import find_idle, find_poor
from rollart_hpc.config.modes import modes_where, preset_of
from rollart_hpc.config.pools import engine_of, pools_for, pools_with
from rollart_hpc.config.schema import RunConfig, TaskConfig
from rollart_hpc.config.site import find_option_problems
from rollart_hpc.hardware import ANY, AUTO, BANDWIDTH, COMPUTE, PROFILES

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def find_conflicts(config: RunConfig) -> list[str]:
    """Every reason why this run can't start."""
    found = [*_name(config), *_tasks(config), *_deterministic(config), *_processes(config), *_pools(config)]
    found.extend(find_option_problems("job.sbatch", config.job.sbatch))
    found.extend([*_split(config), *find_backend_conflicts(config), *find_algorithm_conflicts(config.algorithm)])
    found.extend([*_updates(config), *_reference(config)])
    for name, task in config.tasks.items():
        found.extend(f"tasks.{name}.{problem}" for problem in _task(config, task))
    return found


def find_oddities(config: RunConfig, said: Mapping[str, Any]) -> list[str]:
    """What is legal but probably a mistake. `said`: the keys that the user wrote."""
    found = [*_ignored(config, said.get("flow") or {}), *find_poor(config), *find_idle(config, said)]
    for name, task in config.tasks.items():
        if task.affinity not in (ANY, AUTO) and not _num_engines(config, pools_for(config, task.affinity)):
            found.append(f"tasks.{name}.affinity: pool {task.affinity} has no engines; another pool will serve it")
        if task.split and not all(_num_engines(config, pools_with(config, profile)) for profile in PROFILES):
            found.append(f"tasks.{name}.split: a pool has no engines; one engine will serve each turn as a whole")
    found.extend(find_backend_oddities(config))
    if config.reward.workers == 0 and config.reward.elastic.max_workers == 0:
        found.append(
            "reward.workers: 0 with no elastic workers; nothing is scored until a reward worker joins "
            "(rollart-hpc join RUN_DIR reward)"
        )
    return found


def _ignored(config: RunConfig, flow_was_set: Collection[str]) -> Iterator[str]:
    """Keys the user wrote that the mode sets to another value."""
    preset = preset_of(config.mode)
    for key, meant in preset.forced.items():
        value = getattr(config.flow, key)
        if key in flow_was_set and value != meant:
            shown, instead = (str(v).lower() for v in (value, meant))
            yield f"flow.{key}: {shown} has no effect: in mode {config.mode} it is always {instead}"
    is_streaming_set = preset.streaming and "streaming" in flow_was_set and config.flow.streaming
    if is_streaming_set and config.algorithm.needs_whole_batch:
        key = batch_scoped(config.algorithm)[0]
        name = getattr(config.algorithm, key.removeprefix("algorithm."), "")
        yield f"flow.streaming: true has no effect: {f'{key}: {name}' if name else key} needs the whole batch"


def _name(config: RunConfig) -> Iterator[str]:
    if not _NAME.fullmatch(config.name):
        yield f"name: {config.name!r} is not a legal name; use letters, digits, '.', '_' and '-'"


def _updates(config: RunConfig) -> Iterator[str]:
    updates, groups = config.algorithm.updates, config.flow.groups_per_step
    if updates > groups:
        yield f"algorithm.updates: {updates} mini-batches of {groups} groups; set it to {groups} or less"


def _reference(config: RunConfig) -> Iterator[str]:
    if config.algorithm.kl_refresh and config.trainer.lora.rank:
        yield (
            "algorithm.kl_refresh: with trainer.lora the reference is the base model under the adapters, which is "
            "never refreshed; set it to 0"
        )


def _tasks(config: RunConfig) -> Iterator[str]:
    if not config.tasks:
        yield "tasks: none; a run needs at least one, e.g. tasks: {frozenlake: {}}"
    elif all(task.weight == 0 for task in config.tasks.values()):
        yield "tasks: all weights are 0; set at least one to a positive number"
    for name in config.tasks:
        if not _NAME.fullmatch(name):
            yield f"tasks.{name}: a name may contain only letters, digits, '.', '_' and '-'; rename it"
    legal = list(dict.fromkeys([*config.pools, *PROFILES, ANY, AUTO]))
    for name, task in config.tasks.items():
        if task.affinity not in legal:
            yield f"tasks.{name}.affinity: there is no pool {task.affinity!r}; {nearest(task.affinity, legal)}"


def _task(config: RunConfig, task: TaskConfig) -> Iterator[str]:
    if task.group_filter != "none" and config.flow.group_size == 1 and task.weight:
        yield (
            f"group_filter: {task.group_filter} drops every group of one trajectory; "
            "set flow.group_size to 2 or more, or none"
        )
    if task.max_response_tokens >= task.max_tokens:
        yield (
            f"max_response_tokens: {task.max_response_tokens} leaves no room for a prompt; "
            f"it must be less than max_tokens ({task.max_tokens})"
        )


def find_model_problems(config: RunConfig) -> Iterator[str]:
    """Of the model directory. It may be missing if only a plan is wanted."""
    model = config.model
    if model.kind != "directory":
        return
    if not model.path:
        yield "model.path: empty; model.kind: directory needs a Hugging Face model directory, e.g. model.path=DIR"
        return
    missing = [name for name in ("config.json", "tokenizer.json") if not (Path(model.path) / name).is_file()]
    if not Path(model.path).is_dir():
        yield f"model.path: directory {model.path} does not exist; correct the path"
    elif missing:
        lacks = " and no ".join(missing)
        yield f"model.path: {model.path} is not a model directory: it has no {lacks}; correct the path"


def _deterministic(config: RunConfig) -> Iterator[str]:
    for key in ("redundancy", "redundant_groups"):
        value = getattr(config.flow, key)
        if config.deterministic and value:
            yield f"flow.{key}: {value} makes batches depend on what finishes first; deterministic: true needs 0"


def _pools(config: RunConfig) -> Iterator[str]:
    for name, pool in config.pools.items():
        if not _NAME.fullmatch(name) or name in (ANY, AUTO):
            yield f"pools.{name}: a name has only letters, digits, '.', '_' and '-', not {ANY} or {AUTO}; rename it"
        if name in PROFILES and pool.profile not in ("", name):
            yield f"pools.{name}.profile: {pool.profile}, but the pool is named {name}; remove it, or rename the pool"
        if pool.elastic.min > pool.elastic.max:
            yield f"pools.{name}.elastic.min: {pool.elastic.min} is more than max ({pool.elastic.max}); change one"


def _processes(config: RunConfig) -> Iterator[str]:
    if not _num_engines(config, config.pools):
        yield "pools: no engines; set engines of at least one pool to 1 or more"
    if config.launch.mode == "jobs" and config.weights.collective == "mpi":
        yield "launch.mode: jobs, but an MPI world can't span jobs; set weights.collective=gloo, or launch.mode=het"
    timeouts = config.timeouts
    if timeouts.silence_s < 2 * timeouts.heartbeat_s:
        yield (
            f"timeouts.silence_s: {timeouts.silence_s:g} is too short: one late heartbeat would count as a death; "
            f"it must be at least twice heartbeat_s ({timeouts.heartbeat_s:g})"
        )


def _split(config: RunConfig) -> Iterator[str]:
    for name in [name for name, task in config.tasks.items() if task.split]:
        if preset_of(config.mode).install_idle:
            fit = modes_where(lambda preset: not preset.install_idle)
            yield f"tasks.{name}.split: true needs mode {fit}; in {config.mode} engines install weights only when idle"
        if config.tasks[name].affinity == AUTO:
            yield f"tasks.{name}.affinity: auto, but split: true says which pools serve it; set affinity to any"
        if config.deterministic:
            yield f"tasks.{name}.split: true decodes from another engine's KV; deterministic: true needs false"
        pools = [*pools_with(config, COMPUTE), *pools_with(config, BANDWIDTH)]
        if len({config.pools[pool].tensor_parallel for pool in pools}) > 1:
            yield f"tasks.{name}.split: true needs the same tensor_parallel in pools {', '.join(pools)}"
        if len({engine_of(config, pool).dtype for pool in pools}) > 1:
            yield f"tasks.{name}.split: true needs the same dtype in pools {', '.join(pools)}: their engines share KV"


def _num_engines(config: RunConfig, pools: Iterable[str]) -> int:
    """Engines that are, or may come to be, in these pools."""
    known = [config.pools[pool] for pool in pools if pool in config.pools]
    return sum(pool.engines + pool.elastic.max for pool in known)
