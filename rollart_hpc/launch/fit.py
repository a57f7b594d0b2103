"""Whether a run fits into the memory of its GPUs, hosts and shared memory, before it is submitted. Starts nothing.

`estimate.memory` counts bytes; this module compares them with the classes of a site, and finds what would fit instead.
A class whose GPU memory is unknown is shown without a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rollart_hpc.backends.registry import find
from rollart_hpc.config.model_shape import ModelShape, read_shape
from rollart_hpc.config.pools import engine_of
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import ConfigError
from rollart_hpc.estimate.memory import (
    ITEM_BYTES,
    EngineSize,
    Parts,
    TrainerSize,
    engine_parts,
    kv_capacity,
    kv_token_bytes,
    relay_bytes,
    trainer_parts,
)
from rollart_hpc.launch.plan import Plan

GB = 2**30
USABLE = 0.92  # of a GPU: the rest is CUDA's context, NCCL's buffers and what the allocator can't use
_SHM_SHARE = 0.5  # of a host's memory: what Linux gives /dev/shm by default
_LORA_RANK = 32  # of the adapters that are proposed
_MOST_RANKS = 1024


@dataclass(frozen=True)
class Row:
    """What one process needs of one place, in bytes."""

    who: str  # trainer rank, engine of pool NAME, node
    hardware: str
    where: str  # GPU, host, /dev/shm
    needs: float
    has: float  # 0: unknown
    parts: Parts
    note: str = ""
    problem: str = ""
    advice: str = ""


@dataclass(frozen=True)
class Fit:
    rows: tuple[Row, ...] = ()
    unknown: str = ""  # why nothing could be estimated, or what was assumed
    warnings: tuple[str, ...] = ()

    def need(self, what: str) -> None:
        """Raises if something can't fit."""
        problems = [f"{row.problem}; {row.advice}" for row in self.rows if row.problem]
        if problems:
            raise ConfigError(what, problems)


def fit_of(config: RunConfig, site: SiteConfig, plan: Plan, shape: ModelShape | None = None) -> Fit:
    """`shape`: of the model, if its directory is not there."""
    if not plan.components:
        return Fit()
    if shape is None and config.model.kind != "directory":
        return Fit(unknown="memory: the run makes a tiny model, which fits anywhere")
    shape = shape or read_shape(Path(config.model.path))
    if shape is None:
        where = config.model.path or "model.path"
        return Fit(unknown=f"memory is not estimated: {where} has no config.json of a dense decoder")
    rows = (*_trainer(config, site, plan, shape), *_engines(config, site, plan, shape), *_hosts(config, site, plan))
    unknown = sorted({row.hardware for row in rows if row.where == "GPU" and not row.has})
    told = f"memory of the GPUs of {', '.join(unknown)} is unknown: set gpu_memory_gb of the class" if unknown else ""
    return Fit(rows, told, tuple(_warnings(rows)))


# --- the trainer -------------------------------------------------------------------------------


def _trainer(config: RunConfig, site: SiteConfig, plan: Plan, shape: ModelShape) -> Iterator[Row]:
    first = next((proc for proc in plan.of("trainer") if proc.needs.gpus), None)
    size = trainer_size(config)
    if first is None or size is None:
        return
    parts = trainer_parts(shape, size)
    has = site.gpu(first.hardware).memory_gb * GB
    needs = sum(parts.values())
    row = Row("trainer rank", first.hardware, "GPU", needs, has, parts, f"micro-batch of {size.tokens} tokens")
    yield _judged(row, "trainer", lambda: _trainer_advice(shape, size, has * USABLE))


def trainer_size(config: RunConfig) -> TrainerSize | None:
    """None for a kind that does not say how it lays out a model."""
    trainer, backend = config.trainer, find("trainer", config.trainer.kind)
    if backend.shards is None and backend.divides is None:
        return None
    tensor, pipeline = backend.divides(config) if backend.divides else (1, 1)
    shards = backend.shards(config) if backend.shards else None
    return TrainerSize(
        ranks=trainer.ranks,
        tokens=max(trainer.microbatch_tokens, _longest(config)),
        item=ITEM_BYTES[trainer.dtype],
        checkpointing=trainer.activation_checkpointing,
        adapter_rank=trainer.lora.rank,
        has_reference=config.algorithm.kl > 0 and not trainer.lora.rank,
        has_critic=config.algorithm.needs_critic,
        sums_whole=config.deterministic or trainer.ranks == 1,
        tensor=tensor,
        pipeline=pipeline,
        shards=shards.ranks if shards else 0,
        on_host=bool(shards and shards.on_host),
    )


def _trainer_advice(shape: ModelShape, size: TrainerSize, room: float) -> str:
    """Single changes that would be enough."""

    def fits(**changes: Any) -> bool:
        return sum(trainer_parts(shape, replace(size, **changes)).values()) <= room

    found = []
    if size.item > ITEM_BYTES["bfloat16"] and fits(item=ITEM_BYTES["bfloat16"]):
        found.append("trainer.dtype=bfloat16")
    if not size.checkpointing and fits(checkpointing=True):
        found.append("trainer.activation_checkpointing=true")
    if size.shards and not size.on_host and fits(on_host=True):
        found.append("trainer.options.cpu_offload=true, which is slow")
    if size.shards < size.ranks and fits(shards=size.ranks):
        found.append("trainer.options.shard_ranks=0")
    ranks = next(
        (n for n in _doubled(size.ranks) if fits(ranks=n, shards=n if size.shards else 0, sums_whole=False)), 0
    )
    if ranks:
        found.append(
            f"trainer.ranks={ranks}{' and trainer.options.shard_ranks=0' if 0 < size.shards < size.ranks else ''}"
        )
    tokens = next((n for n in _halved(size.tokens) if fits(tokens=n)), 0)
    if tokens:
        found.append(f"trainer.microbatch_tokens={tokens} and max_tokens of tasks at most that")
    if size.shards and not size.adapter_rank and fits(adapter_rank=_LORA_RANK, has_reference=False):
        found.append(f"trainer.lora.rank={_LORA_RANK}")
    return _any_of(found, "no single change is enough: combine activation checkpointing, more ranks, shorter samples")


# --- engines -----------------------------------------------------------------------------------


def _engines(config: RunConfig, site: SiteConfig, plan: Plan, shape: ModelShape) -> Iterator[Row]:
    kinds = {(proc.pool, proc.hardware): proc for proc in plan.of("engine") if proc.needs.gpus}
    for (pool, hardware), proc in kinds.items():
        has = site.gpu(hardware).memory_gb * GB
        size, share = engine_size(config, pool, proc.needs.gpus)
        parts = engine_parts(shape, size)
        per_token, longest = kv_token_bytes(shape, size), max(1, _longest(config))
        if share is None:
            parts["KV"] = engine_of(config, pool).kv_slots * longest * per_token
            tokens, room = int(parts["KV"] / per_token), has * USABLE
        else:
            room = has * share
            tokens = kv_capacity(shape, size, room)
            parts["KV"] = max(longest, tokens) * per_token  # at least one trajectory must fit
        needs = sum(parts.values())
        note = f"KV of {tokens} tokens: {tokens / longest:.3g} trajectories of {longest}" if has else ""
        row = Row(f"engine of {pool}", hardware, "GPU", needs, has, parts, note)
        advise = _advisor(config, shape, pool, size, room, share)
        yield _judged(row, f"pools.{pool}", advise, room)


def engine_size(config: RunConfig, pool: str, gpus: int) -> tuple[EngineSize, float | None]:
    """And the share of a GPU that it fills; None if it makes room for `kv_slots` trajectories instead."""
    engine = engine_of(config, pool)
    size = EngineSize(gpus, ITEM_BYTES[engine.dtype], engine.max_prefill_tokens, engine.max_running)
    declared = find("engine", engine.kind).gpu_share
    if declared is None:
        return size, None
    option, default = declared
    return size, float(engine.options.get(option, default))


def _advisor(
    config: RunConfig, shape: ModelShape, pool: str, size: EngineSize, room: float, share: float | None
) -> Callable[[], str]:
    trajectories = 1 if share is not None else engine_of(config, pool).kv_slots
    longest = max(1, _longest(config))

    def fits(count: int, length: int, **changes: Any) -> bool:
        tried = replace(size, **changes)
        return sum(engine_parts(shape, tried).values()) + count * length * kv_token_bytes(shape, tried) <= room

    def advise() -> str:
        found = []
        if size.item > ITEM_BYTES["bfloat16"] and fits(trajectories, longest, item=ITEM_BYTES["bfloat16"]):
            found.append("engine.dtype=bfloat16")
        wider = (n for n in _doubled(size.tensor) if n <= shape.heads and shape.heads % n == 0)
        if tensor := next((n for n in wider if fits(trajectories, longest, tensor=n)), 0):
            found.append(f"pools.{pool}.tensor_parallel={tensor}")
        if trajectories > 1 and (slots := next((n for n in _halved(trajectories, 1) if fits(n, longest)), 0)):
            found.append(f"engine.kv_slots={slots}")
        if length := next((n for n in _halved(longest) if fits(trajectories, n)), 0):
            found.append(f"max_tokens={length} for all tasks")
        return _any_of(found, "use a class with larger GPUs")

    return advise


# --- hosts -------------------------------------------------------------------------------------


def _hosts(config: RunConfig, site: SiteConfig, plan: Plan) -> Iterator[Row]:
    """The fullest node of each class. That processes fit beside each other is the packing's business."""
    for hardware in dict.fromkeys(component.hardware for component in plan.components):
        has = site.classes[hardware].memory_gb * GB
        nodes = [node for c in plan.components if c.hardware == hardware for node in c.nodes]
        used = {node: _by_role(plan, node) for node in nodes}
        parts = max(used.values(), key=lambda of: sum(of.values()))
        yield Row("fullest node", hardware, "host", sum(parts.values()), has, parts, "as requested")
        if any(proc.role == "relay" for node in nodes for proc in plan.on(node)):
            needs = relay_bytes(config.model.parameters_b * 1e9, config.trainer.dtype)
            yield Row("relay", hardware, "/dev/shm", needs, has * _SHM_SHARE, {"weights": needs}, "three versions")


def _by_role(plan: Plan, node: str) -> Parts:
    parts: Parts = {}
    for proc in plan.on(node):
        parts[proc.role] = parts.get(proc.role, 0.0) + proc.needs.memory_gb * GB
    return parts


def _warnings(rows: tuple[Row, ...]) -> Iterator[str]:
    for row in rows:
        if row.where == "/dev/shm" and row.has and row.needs > row.has:
            yield (
                f"class {row.hardware}: a relay keeps {row.needs / GB:.0f} GB of weights in /dev/shm, more than half "
                f"of the {row.has / _SHM_SHARE / GB:.0f} GB of a node, its usual size; mount it larger, or use "
                "weights.transport=direct"
            )


# --- common ------------------------------------------------------------------------------------


def _judged(row: Row, key: str, advise: Callable[[], str], room: float = 0.0) -> Row:
    """The row with its problem, if it does not fit. `room`: bytes that may be used; 0 = the usual share."""
    room = room or row.has * USABLE
    if not row.has or row.needs <= room:
        return row
    listed = ", ".join(f"{name} {size / GB:.1f}" for name, size in row.parts.items() if size / GB >= 0.05)
    problem = (
        f"{key}: a GPU of class {row.hardware} has {row.has / GB:.0f} GB, of which {room / GB:.1f} GB can be used, but "
        f"{row.who} needs about {row.needs / GB:.1f} GB ({listed})"
    )
    return replace(row, problem=problem, advice=advise())


def _longest(config: RunConfig) -> int:
    return max((task.max_tokens for task in config.tasks.values()), default=0)


def _doubled(number: int) -> Iterator[int]:
    while (number := number * 2) <= _MOST_RANKS:
        yield number


def _halved(number: int, least: int = 256) -> Iterator[int]:
    while (number := number // 2) >= least:
        yield number


def _any_of(found: list[str], otherwise: str) -> str:
    return f"any of these would be enough: {'; '.join(found)}" if found else otherwise


# --- as text and data --------------------------------------------------------------------------


def fit_data(fit: Fit) -> dict[str, Any]:
    return {"rows": [asdict(row) for row in fit.rows], "unknown": fit.unknown, "warnings": list(fit.warnings)}


def fit_rows(fit: Fit) -> list[tuple[str, ...]]:
    return [
        (
            row.who,
            row.hardware,
            row.where,
            f"{row.needs / GB:.1f} GB",
            f"{row.has / GB:.0f} GB" if row.has else "unknown",
            ", ".join(f"{name} {size / GB:.1f}" for name, size in row.parts.items() if size / GB >= 0.05),
            row.note,
        )
        for row in fit.rows
    ]
