"""What rollart-hpc reads on every machine. Imports no torch."""

from collections.abc import Iterator
from dataclasses import dataclass

from rollart_hpc.backends.declaration import Backend
from rollart_hpc.config.fields import key
from rollart_hpc.config.schema import RunConfig


@dataclass
class EngineOptions:
    tokens_per_step: int = key(4, "tokens generated for every request before messages are read again", low=1)


@dataclass
class TrainerOptions:
    momentum: float = key(0.0, "momentum of SGD", low=0, high=1)


def check(config: RunConfig) -> Iterator[str]:
    for name in ("kl", "entropy"):
        if getattr(config.algorithm, name):
            yield f"algorithm.{name}: trainer plain can't compute it; set it to 0, or trainer.kind: fsdp"


ENGINE = Backend(
    role="engine",
    kind="plain",
    summary="one forward over the whole trajectory for every token",
    make="plain_backends.engine:PlainEngine",
    modules=("torch", "transformers"),
    extra="train",
    imports=("plain_backends.engine",),
    is_forkable=True,
    options=EngineOptions,
    ignores=("max_running", "kv_slots", "max_prefill_tokens"),
)
TRAINER = Backend(
    role="trainer",
    kind="plain",
    summary="SGD on one rank",
    make="plain_backends.trainer:PlainTrainer",
    modules=("torch", "transformers", "safetensors"),
    extra="train",
    imports=("plain_backends.trainer",),
    is_forkable=True,
    options=TrainerOptions,
    ignores=("beta1", "beta2", "dtype"),
    check=check,
)
