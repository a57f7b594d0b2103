"""The contract of every engine: token ids in; ids, log-probs and versions out. Knows no backend.

    add -> step, step, ... -> Finished        abort at any time; forget when a trajectory has ended
    suspend -> install -> resume              running requests keep their tokens and continue under the new weights

One thread drives an engine. It generates nothing before its first `install`.
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
    """Everything needed to create an engine."""

    model: Path  # Hugging Face directory: architecture and end-of-turn ids; weights come from an install
    config: EngineConfig
    max_len: int  # maximum tokens per trajectory
    scratch: Path  # for compiler caches; private to the run
    store: Path = Path()  # root of the node's weight stores
    inbox: str = "inbox"  # name of the engine's own store there, for weights that its workers can't take as tensors
    tensor_parallel: int = 1
    deterministic: bool = False
    seed: int = 0
    kv_directory: Path | None = None  # split turns: where engines exchange KV on CPU machines; None = no split turns
    host: str = "127.0.0.1"  # address at which other engines reach this one

    @property
    def on_cpu(self) -> bool:
        if self.config.device != "auto":
            return self.config.device == "cpu"
        import torch

        return not torch.cuda.is_available()


@dataclass(slots=True)
class Request:
    """One turn. `new_ids` follow the first `prefix_tokens` tokens of this trajectory, which the engine holds.

    With `full`, `new_ids` is the whole prompt and the prefix fields are ignored.
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
    prefill_only: bool = False  # sample nothing; make the prompt's KV available to another engine
    kv: str = ""  # handle of KV that another engine prefilled; if it is unusable, this engine prefills the prompt


@dataclass(slots=True)
class Finished:
    """The result of a request. `record` holds only the sampled tokens, each with the version that sampled it."""

    request: int
    trajectory: str
    finish: Finish  # "stop": the end-of-turn token was sampled (and is included)
    record: TokenRecord
    num_prefill_tokens: int  # tokens run through the model, without those sampled in this turn; includes rebuilt ones
    num_decode_tokens: int  # tokens sampled
    kv: str = ""  # only if the request was `prefill_only`: the `kv` for the engine that decodes
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0


@dataclass(slots=True)
class Counters:
    """Totals since the engine started."""

    num_forwards: int = 0
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    num_evicted: int = 0
    num_prefix_missing: int = 0
    num_kv_refused: int = 0  # prompts computed again because their KV came from other weights


class Engine(Protocol):
    counters: Counters
    num_ranks: int  # its ranks in a weight transfer: one for each process that holds a part of the model

    @property
    def device(self) -> torch.device | None:
        """The device that receives the weights of a collective. None: the engine's own worker processes join it."""

    @property
    def kv_tokens(self) -> int:
        """Capacity of the KV cache in tokens; 0 = unknown, or no cache. Constant once the engine exists."""

    @property
    def kv_used_tokens(self) -> int:
        """Tokens of KV in use now. Read with every answer, so it must be cheap."""

    def add(self, request: Request) -> bool:
        """Queue a request. False: this engine does not hold the prefix; send the request again with `full`."""

    def abort(self, request: int) -> None:
        """Stop a request in whatever state it is; it returns no result. Unknown requests are ignored."""

    def forget(self, trajectories: Iterable[str]) -> None:
        """Free everything held for these trajectories."""

    def step(self) -> list[Finished]:
        """One scheduler step: admit, one forward, sample. Returns the requests that finished."""

    def busy(self) -> bool:
        """True if `step` has work to do."""

    def suspend(self) -> None: ...

    def install(self, named: Iterable[tuple[str, torch.Tensor]], weights_id: WeightsId) -> None:
        """Load a full set of weights (Hugging Face names, tied tensors once). Call `suspend` first."""

    def resume(self) -> None: ...

    def close(self) -> None:
        """Stop every process and thread of the engine. No method is called afterwards."""
