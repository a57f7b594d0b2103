"""What every engine offers: token ids in; ids, log-probs and versions out. Owns the contract; knows no backend.

    add -> step, step, ... -> Finished        abort at any time; forget when a trajectory has ended
    suspend -> install -> resume              running requests keep their tokens and go on under the new weights

An engine is driven by one thread. It generates only after its first `install`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rollart_hpc.config.schema import EngineConfig
from rollart_hpc.types import TokenRecord, WeightsId

if TYPE_CHECKING:
    import torch

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class EngineSetup:
    """What an engine is made with."""

    model: Path  # Hugging Face directory: architecture and end-of-turn ids; weights come by an install
    config: EngineConfig
    max_len: int  # maximum tokens per trajectory
    scratch: Path  # for caches of compilers; private to the run
    store: Path = Path()  # root of the node's weight stores
    inbox: str = "inbox"  # name of a store of its own there, for weights that its workers can't take as tensors
    tensor_parallel: int = 1
    deterministic: bool = False
    seed: int = 0
    kv_directory: Path | None = None  # split turns: where KV changes hands on CPU machines; None = no split turns
    host: str = "127.0.0.1"  # where engines elsewhere reach this one

    @property
    def on_cpu(self) -> bool:
        if self.config.device != "auto":
            return self.config.device == "cpu"
        import torch

        return not torch.cuda.is_available()


@dataclass(slots=True)
class Request:
    """One turn. `new_ids` follow the first `prefix_tokens` tokens that the engine holds of this trajectory.

    With `full` they are the whole prompt and the prefix is not looked at.
    """

    request: int
    trajectory: str
    prefix_tokens: int
    prefix_hash: int
    full: bool
    new_ids: NDArray[np.int32]
    max_new_tokens: int
    temperature: float = 1.0  # 0 = greedy
    seed: int = 0  # used only by a deterministic engine
    prefill_only: bool = False  # sample nothing, let another engine have the prompt's KV
    kv: str = ""  # what a prefill elsewhere came to; the prompt is computed here if it is of no use


@dataclass(slots=True)
class Finished:
    """What a request came to. `record` holds the sampled tokens only, each with the version it was sampled under."""

    request: int
    trajectory: str
    finish: Finish  # "stop": the end-of-turn token was sampled (and is included)
    record: TokenRecord
    num_prefill_tokens: int  # tokens run through the model besides those sampled in this turn, rebuilt ones included
    num_decode_tokens: int  # tokens sampled
    kv: str = ""  # of a request that was to prefill only: the `kv` for the engine that decodes
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(slots=True)
class Counters:
    """What an engine did since it started."""

    num_forwards: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_evicted: int = 0
    num_prefix_missing: int = 0
    num_kv_refused: int = 0  # prompts computed again because other weights had made their KV


class Engine(Protocol):
    counters: Counters
    num_ranks: int  # its places in a collective of weights: one for each process that holds a part of the model

    @property
    def device(self) -> torch.device | None:
        """Where weights of a collective are wanted. None: processes of its own join it."""

    @property
    def kv_tokens(self) -> int:
        """Capacity of its KV cache in tokens; 0 = unknown, or it has none. Fixed once the engine is made."""

    @property
    def kv_used_tokens(self) -> int:
        """As much of the capacity as is taken now. Asked for with every answer: it must be cheap."""

    def add(self, request: Request) -> bool:
        """Queue a request. False: the prefix is not held here; ask again with `full`."""

    def abort(self, request: int) -> None:
        """Stop a request wherever it is; it yields nothing. An unknown one is ignored."""

    def forget(self, trajectories: Iterable[str]) -> None:
        """Free what is kept of them."""

    def step(self) -> list[Finished]:
        """One scheduler step: admit, one forward, sample. Returns what ended."""

    def busy(self) -> bool:
        """True if `step` would get something done."""

    def suspend(self) -> None: ...

    def install(self, named: Iterable[tuple[str, torch.Tensor]], weights_id: WeightsId) -> None:
        """Take over a full set of weights (Hugging Face names, tied tensors once). Needs `suspend` before it."""

    def resume(self) -> None: ...

    def close(self) -> None:
        """End what it started. Nothing is asked of it afterwards."""
