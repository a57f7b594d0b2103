"""The declaration of an engine or trainer kind: what other code must know before it starts one.

A declaration is plain data in a module that imports nothing heavy, because login nodes without torch read it.
Configuration, launchers, benchmarks and the base model read the declaration and never compare a kind by name. The
backend itself is imported through the path in `make`, only in the process that needs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal, NamedTuple

BackendRole = Literal["engine", "trainer"]

# Optional capabilities, and the key of a run that requires each.
CAPABILITIES: dict[BackendRole, dict[str, str]] = {
    "engine": {
        "split": "tasks.NAME.split",
        "tensor_parallel": "pools.NAME.tensor_parallel",
        "deterministic": "deterministic",
        "direct": "weights.transport: direct",
    },
    "trainer": {
        "ranks": "trainer.ranks",
        "lora": "trainer.lora.rank",
        "activation_checkpointing": "trainer.activation_checkpointing",
        "deterministic": "deterministic",
        "critic": "algorithm.estimator: gae",
        "kl_refresh": "algorithm.kl_refresh",
    },
}
_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


class Shards(NamedTuple):
    """How a run shards the weights of its trainer."""

    ranks: int  # that share one copy
    on_host: bool = False  # shards, gradients and optimizer state are in host memory


@dataclass(frozen=True, kw_only=True)
class Backend:
    role: BackendRole
    kind: str  # the value of `engine.kind` or `trainer.kind`
    summary: str  # one-line description
    make: str  # module:callable. engine: (EngineSetup) -> Engine; trainer: (RunConfig, Path, World) -> Trainer
    modules: tuple[str, ...] = ()  # top-level modules that must be installed where it runs
    extra: str = ""  # extra of rollart-hpc that installs them
    install: str = ""  # how to install them otherwise
    imports: tuple[str, ...] = ()  # slow imports, done before the process gets its arguments or before it is forked
    is_forkable: bool = False  # works in a process forked from one that has imported `imports`
    can: frozenset[str] = frozenset()  # its CAPABILITIES
    options: type | None = None  # dataclass of `config.fields.key` fields: the legal keys of `engine.options`
    takes_any_option: bool = False  # instead of `options`: the backend rejects unknown options when it starts
    reserved: tuple[str, ...] = ()  # options that users may not set, because the run sets them
    ignores: tuple[str, ...] = ()  # keys of the section `engine` or `trainer` that have no effect
    min_head_dim: int = 1  # smallest attention head that its kernels support
    gpu_share: tuple[str, float] | None = None  # engines that fill a share of a GPU with KV: its option, its default
    shards: Callable[[Any], Shards] | None = None  # trainers that shard weights and gather them block by block
    divides: Callable[[Any], tuple[int, int]] | None = None  # trainers: RunConfig -> tensor, pipeline parallel ranks
    divided_by: tuple[str, ...] = ()  # trainers: options that cut a model over ranks; each is 1 on a single rank
    check: Callable[[Any], Iterable[str]] | None = None  # RunConfig -> problems that the fields above can't express
    raw: str = ""  # engines: module:callable (EngineSetup) that uses the library directly, for `bench engine`

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ValueError(f"declaration of {self.role} {self.kind!r}: {'; '.join(problems)}")

    def _problems(self) -> Iterable[str]:
        if self.role not in CAPABILITIES:
            yield f"role must be one of {', '.join(CAPABILITIES)}"
            return
        if not _KIND.fullmatch(self.kind):
            yield "kind may contain only letters, digits, '_' and '-'"
        for name in ("make", "raw"):
            path = getattr(self, name)
            if (path or name == "make") and not _PATH.fullmatch(path):
                yield f"{name}: {path!r} is not of the form package.module:name"
        unknown = sorted(self.can - CAPABILITIES[self.role].keys())
        if unknown:
            yield f"can: unknown {', '.join(unknown)}; legal: {', '.join(CAPABILITIES[self.role])}"
        if self.options is not None and (self.takes_any_option or not is_dataclass(self.options)):
            yield "options must be a dataclass, and takes_any_option false"
