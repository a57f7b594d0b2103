"""What a run asks of its engine and trainer kinds against what they declare. Owns those rules; names no kind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import MISSING, fields
from typing import Any, TypeVar

from rollart_hpc.backends.declaration import Backend, BackendRole
from rollart_hpc.backends.registry import find, kinds_that_can
from rollart_hpc.config.check import find_problems
from rollart_hpc.config.schema import EngineConfig, RunConfig, TrainerConfig
from rollart_hpc.errors import UserError

Options = TypeVar("Options")


def read_options(schema: type[Options], options: dict[str, Any]) -> Options:
    """The options of a kind, checked before, with the defaults of its declaration."""
    import msgspec  # late: `rollart-hpc keys` reads declarations and needs nothing else

    return msgspec.convert(options, schema)


def find_backend_conflicts(config: RunConfig) -> Iterator[str]:
    """Every reason why these kinds can't carry out this run."""
    sections: dict[BackendRole, EngineConfig | TrainerConfig] = {"engine": config.engine, "trainer": config.trainer}
    for role, section in sections.items():
        try:
            backend = find(role, section.kind)
        except UserError as error:
            yield f"{role}.kind: {error.what}; {error.fix}"
            continue
        bad_options = list(_options(backend, f"{role}.options", section.options))
        if role == "engine":
            bad_options += _options_of_pools(backend, config)
        yield from bad_options
        yield from _wanted(config, backend)
        if backend.check is not None and not bad_options:
            yield from backend.check(config)


def find_backend_oddities(config: RunConfig) -> Iterator[str]:
    """What these kinds will not do, although the run goes on without it."""
    engine = find("engine", config.engine.kind)
    for name, pool in config.pools.items():
        if pool.tensor_parallel > 1 and "tensor_parallel" not in engine.can:
            yield (
                f"pools.{name}.tensor_parallel: engine {engine.kind} uses only one of the {pool.tensor_parallel} GPUs; "
                f"set it to 1, or {_use_another('engine', 'tensor_parallel')}"
            )
        for key in pool.engine:
            if key in engine.ignores:
                yield f"pools.{name}.engine.{key}: has no effect with engine.kind: {engine.kind}; remove it"
    for backend, section in ((engine, config.engine), (find("trainer", config.trainer.kind), config.trainer)):
        for key in _changed(section):
            if key in backend.ignores:
                yield f"{backend.role}.{key}: has no effect with {backend.role}.kind: {backend.kind}; remove it"


def _options_of_pools(backend: Backend, config: RunConfig) -> Iterator[str]:
    for name, pool in config.pools.items():
        if "options" in pool.engine:
            yield from _options(backend, f"pools.{name}.engine.options", pool.engine["options"])


def _options(backend: Backend, where: str, options: dict[str, Any]) -> Iterator[str]:
    for name in backend.reserved:
        if name in options:
            yield f"{where}.{name}: set by the run itself; remove it"
    if backend.options is not None:
        yield from find_problems(backend.options, options, where)
    elif not backend.takes_any_option:
        whose = f"{backend.role} {backend.kind}"
        yield from (
            f"{where}.{name}: {whose} has no options; remove it, or change {backend.role}.kind" for name in options
        )


def _wanted(config: RunConfig, backend: Backend) -> Iterator[str]:
    """Keys that ask for a capability which the kind lacks."""
    asks = _engine_asks(config) if backend.role == "engine" else _trainer_asks(config)
    whose = f"{backend.role} {backend.kind}"
    for capability, key, value in asks:
        if capability not in backend.can:
            yield f"{key}: {value} is not possible with {whose}; {_use_another(backend.role, capability)}"


def _engine_asks(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    for name, task in config.tasks.items():
        if task.split:
            yield "split", f"tasks.{name}.split", "true"
    if config.deterministic:
        yield "deterministic", "deterministic", "true"
    if config.weights.transport == "direct":
        yield "direct", "weights.transport", "direct"


def _trainer_asks(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    trainer = config.trainer
    if trainer.ranks > 1:
        yield "ranks", "trainer.ranks", str(trainer.ranks)
    if trainer.lora.rank:
        yield "lora", "trainer.lora.rank", str(trainer.lora.rank)
    if trainer.activation_checkpointing:
        yield "activation_checkpointing", "trainer.activation_checkpointing", "true"
    if config.deterministic:
        yield "deterministic", "deterministic", "true"
    if config.algorithm.kl_refresh:
        yield "kl_refresh", "algorithm.kl_refresh", str(config.algorithm.kl_refresh)
    with suppress(UserError):  # an estimator that does not exist is told elsewhere
        if config.algorithm.needs_critic:
            yield "critic", "algorithm.estimator", config.algorithm.estimator


def _use_another(role: BackendRole, capability: str) -> str:
    return f"set {role}.kind: {' or '.join(kinds_that_can(role, capability))}"


def _changed(section: Any) -> list[str]:
    """Keys of a section that don't have their default."""
    return [f.name for f in fields(section) if f.default is not MISSING and getattr(section, f.name) != f.default]
