"""From a run file, a site, a plan and a workload to a simulated cluster. Owns the checks of what is missing.

Nodes, engines, ranks and workers are those of the plan; sizes of KV are those that `plan` shows. What no file says is
assumed, and told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from rollart_hpc.config.automatic import automatic_tasks
from rollart_hpc.config.check import nearest
from rollart_hpc.config.launchers import is_cluster
from rollart_hpc.config.model_shape import ModelShape, read_shape
from rollart_hpc.config.pools import engine_of
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import ConfigError, UserError
from rollart_hpc.estimate import roofline
from rollart_hpc.estimate.memory import kv_capacity
from rollart_hpc.estimate.pools import engine_figures
from rollart_hpc.estimate.shapes import SHAPES
from rollart_hpc.flow.rules import FlowRules, rules_of
from rollart_hpc.hardware import Gpu
from rollart_hpc.launch.fit import GB, USABLE, engine_size, trainer_size
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.planned import Plan, Proc
from rollart_hpc.roles.engine import capacity
from rollart_hpc.simulate.cluster import EngineSpec, Spec
from rollart_hpc.simulate.trainer import TrainerPace
from rollart_hpc.simulate.workload import Workload
from rollart_hpc.trainers.flops import LINEAR
from rollart_hpc.trainers.planning import Planner

_CHUNKS = 8  # of a batch: the trainer plans anew after each such part of its groups


@dataclass(frozen=True)
class Case:
    """A run to be simulated."""

    config: RunConfig
    site: SiteConfig
    workload: Workload
    shape: ModelShape | None  # None: only engines and trainers that were measured can be simulated


def shape_for(config: RunConfig, name: str = "") -> ModelShape | None:
    """Of the named model, or of the run's."""
    if name:
        shape = SHAPES.get(name.lower()) or read_shape(Path(name))
        if shape is None:
            known = ", ".join(SHAPES)
            raise UserError(
                f"--model {name}: neither a known model nor a directory with the config.json of a dense decoder",
                f"use one of {known}, or a model directory",
            )
        return shape
    return read_shape(Path(config.model.path)) if config.model.path else None


def build(case: Case, *, steps: int, plan: Plan | None = None) -> Spec:
    """Raises a ConfigError that lists everything that is missing."""
    found = plan or make_plan(case.config, case.site)
    problems = list(_problems(case, found))
    if problems:
        raise ConfigError(f"run {case.config.name} can't be simulated at site {case.site.name}", problems)
    config = case.config
    figures = engine_figures(config, case.site, case.shape) if automatic_tasks(config) else None
    rules = replace(rules_of(config, figures), steps=steps, validation_plays=0, checkpoint_every=0)
    shape = case.shape
    return Spec(
        rules=rules,
        limits=config.tasks,
        profiles=case.workload.tasks,
        machines=case.workload.machines,
        engines=tuple(_engine(case, proc) for proc in found.of("engine")),
        trainer=_trainer(case, found, rules),
        trainer_node=next(proc.node for proc in found.of("trainer")),
        envs=tuple((proc.name, config.env.slots) for proc in found.of("env")),
        rewards=tuple((proc.name, config.reward.slots) for proc in found.of("reward")),
        weight_bytes=roofline.weight_bytes(shape) if shape else 0.0,
        kv_token_bytes=roofline.kv_bytes(shape) if shape else 0.0,
        keeps_prefix=not config.deterministic,
    )


# --- what is missing ---------------------------------------------------------------------------


def _problems(case: Case, plan: Plan) -> Iterator[str]:
    known = list(case.workload.tasks)
    for task in case.config.tasks:
        if task not in known:
            yield (
                f"tasks.{task}: workload {case.workload.name} does not describe it; {nearest(task, known)}, drop the "
                "task, or use --workload RUN_DIR of a run that had it"
            )
    if not plan.of("engine"):
        yield "pools: none has engines; set pools.NAME.engines"
    if not plan.of("reward"):
        yield "reward.workers: 0, and elastic workers are not simulated; set it to 1 or more"
    machines = case.workload.machines
    pools = {proc.pool: proc for proc in plan.of("engine") if proc.pool not in machines.paces}
    used = {proc.hardware: f"pools.{pool}" for pool, proc in pools.items()}
    if not machines.train_token_s:
        used |= {proc.hardware: "trainer" for proc in plan.of("trainer")}
    for hardware, who in used.items():
        yield from _lacking(case.site, hardware, who)
    if used and case.shape is None:
        yield (
            "model: its size is unknown; set model.path to a directory with the config.json of a dense decoder, or use "
            f"--model with one of {', '.join(SHAPES)}"
        )
    if case.shape is not None:
        yield from _no_room(case, list(pools.values()))


def _lacking(site: SiteConfig, hardware: str, who: str) -> Iterator[str]:
    if hardware not in site.classes or not is_cluster(site.launcher):  # pools of one machine only stand for classes
        yield (
            f"{who}: site {site.name} has no class with figures of its hardware; use --site with one that has GPUs, or "
            "--workload RUN_DIR of a run on this machine"
        )
        return
    gpu = site.gpu(hardware)
    keys = {"tflops": gpu.tflops, "bandwidth_tb_s": gpu.bandwidth_tb_s, "gpu_memory_gb": gpu.memory_gb}
    missing = [f"classes.{hardware}.{key}" for key, value in keys.items() if not value]
    if missing:
        yield f"{who}: {', '.join(missing)}: unknown; set them in the site file, or classes.{hardware}.gpu"


def _no_room(case: Case, procs: list[Proc]) -> Iterator[str]:
    for proc in procs:
        if proc.hardware in case.site.classes and case.site.gpu(proc.hardware).memory_gb:
            tokens = _kv_tokens(case, proc)
            longest = max(task.max_tokens for task in case.config.tasks.values())
            if tokens < longest:
                yield (
                    f"pools.{proc.pool}: its engines have room for {tokens} tokens of KV, and a trajectory may have "
                    f"{longest}; raise tensor_parallel, or lower max_tokens of the tasks"
                )


# --- parts -------------------------------------------------------------------------------------


def _engine(case: Case, proc: Proc) -> EngineSpec:
    config, machines = case.config, case.workload.machines
    engine = engine_of(config, proc.pool)
    pace = machines.paces.get(proc.pool)
    is_measured = pace is not None
    if pace is None:
        assert case.shape is not None
        gpu = case.site.gpu(proc.hardware)
        efficiency = machines.efficiency(roofline.assumed_efficiency(gpu))
        pace = roofline.pace_of(case.shape, gpu, max(1, proc.needs.gpus), efficiency, machines.overhead_s)
    longest = max(task.max_tokens for task in config.tasks.values())
    return EngineSpec(
        proc.name,
        proc.pool,
        proc.node,
        pace,
        kv_tokens=engine.kv_slots * longest if is_measured else _kv_tokens(case, proc),
        capacity=capacity(engine),
        max_running=engine.max_running,
        max_prefill=engine.max_prefill_tokens,
        num_gpus=proc.needs.gpus,
        speed=config.pools[proc.pool].speed,
    )


def _kv_tokens(case: Case, proc: Proc) -> int:
    """As `plan` shows it."""
    assert case.shape is not None
    size, share = engine_size(case.config, proc.pool, max(1, proc.needs.gpus))
    if share is None:
        longest = max(task.max_tokens for task in case.config.tasks.values())
        return engine_of(case.config, proc.pool).kv_slots * longest
    return kv_capacity(case.shape, size, case.site.gpu(proc.hardware).memory_gb * GB * min(share, USABLE))


def _trainer(case: Case, plan: Plan, rules: FlowRules) -> TrainerPace:
    config, machines = case.config, case.workload.machines
    size = trainer_size(config)
    parts = size.tensor * size.pipeline if size else 1
    replicas = max(1, config.trainer.ranks // parts)
    even, cost_s = LINEAR, 0.0
    if case.shape is not None and not machines.train_token_s:
        quadratic = case.shape.layers * case.shape.queries
        even = roofline.matrix_parameters(case.shape) // quadratic
        gpu: Gpu = case.site.gpu(plan.of("trainer")[0].hardware)
        cost_s = passes(config) * quadratic / (gpu.tflops * 1e12 * machines.mfu * parts)
    return TrainerPace(
        Planner(replicas, config.trainer.microbatch_tokens, even),
        longest=max(task.max_tokens for task in config.tasks.values()),
        cost_s=cost_s,
        fixed_s=machines.train_fixed_s,
        num_stages=size.pipeline if size else 1,
        needs_whole_batch=config.algorithm.needs_whole_batch,
        least_groups=max(1, rules.groups_per_step // _CHUNKS),
        token_s=machines.train_token_s,
    )


def passes(config: RunConfig) -> int:
    """FLOPs per parameter and token: forward 2, backward 4, and 2 for every further forward pass."""
    further = (config.trainer.activation_checkpointing, config.algorithm.decoupled, config.algorithm.kl > 0)
    return 6 + 2 * sum(map(bool, further))
