"""What happens to the core: events in, commands out. Owns both vocabularies; they carry no payload.

Payloads (tokens, transcripts, weights) stay with whoever drives the core; a command names the
trajectory or request whose payload is meant.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollart_hpc.flow.state import Group
from rollart_hpc.types import Role, WeightsId

# --- events ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Joined:
    worker: str
    role: Role
    node: str = ""
    pool: str = ""
    capacity: int = 1
    attempt: int = 1
    version: int = -1  # trainer: the version it loaded
    num_ranks: int = 1  # engine: its places in a direct transfer
    kv_tokens: int = 0  # engine: how many tokens its KV cache holds; 0 = unknown
    speed: float = 1.0  # engine: relative to others of the same capacity


@dataclass(frozen=True, slots=True)
class Lost:
    worker: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TurnWanted:
    trajectory: str
    issue: int
    turn: int
    num_tokens: int = 0  # of the prompt: all that the engine must have of this trajectory
    max_new_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Generated:
    request: int
    first_version: int  # -1: nothing was sampled, the engine had no room for this turn
    last_version: int
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Prefilled:
    """The first half of a split turn is done."""

    request: int
    kv: str
    num_prefill_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PrefixMissing:
    request: int


@dataclass(frozen=True, slots=True)
class Ended:
    trajectory: str
    issue: int
    status: str
    num_turns: int = 0
    detail: str = ""  # of a failure


@dataclass(frozen=True, slots=True)
class Scored:
    trajectory: str
    issue: int
    reward: float
    success: bool


@dataclass(frozen=True, slots=True)
class ScoreFailed:
    trajectory: str
    issue: int
    worker: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class BatchWanted:
    version: int


@dataclass(frozen=True, slots=True)
class Committed:
    version: int
    wait_s: float = 0.0
    train_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Saved:
    version: int
    error: str = ""  # "" = good


@dataclass(frozen=True, slots=True)
class Published:
    weights: WeightsId


@dataclass(frozen=True, slots=True)
class Held:
    relay: str
    weights: WeightsId


@dataclass(frozen=True, slots=True)
class TransferReady:
    epoch: int
    host: str = ""
    port: int = 0


@dataclass(frozen=True, slots=True)
class TransferFailed:
    epoch: int
    worker: str


@dataclass(frozen=True, slots=True)
class TransferSent:
    epoch: int
    collective: str = ""


@dataclass(frozen=True, slots=True)
class Installed:
    engine: str
    weights: WeightsId
    num_bytes: int = 0
    seconds: float = 0.0
    exposed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class InstallFailed:
    engine: str
    weights: WeightsId


@dataclass(frozen=True, slots=True)
class DrainWanted:
    reason: str
    at_once: bool = False  # without a checkpoint


@dataclass(frozen=True, slots=True)
class Tick:
    now: float


@dataclass(frozen=True, slots=True)
class GoOn:
    """Nothing has happened: do what the last event left over (`Core.has_backlog`)."""


Event = (
    Joined | Lost | TurnWanted | Generated | Prefilled | PrefixMissing | Ended | Scored | ScoreFailed | BatchWanted
    | Committed | Saved | Published | Held | TransferReady | TransferFailed | TransferSent | Installed | InstallFailed
    | DrainWanted | Tick | GoOn
)  # fmt: skip

# --- commands --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Play:
    worker: str
    trajectory: str
    issue: int
    task: str
    seed: int
    sample_seed: int


@dataclass(frozen=True, slots=True)
class CancelPlay:
    worker: str
    trajectory: str
    issue: int
    reason: str


@dataclass(frozen=True, slots=True)
class AskAgain:
    """The env worker must send this turn once more, with all tokens."""

    worker: str
    trajectory: str
    issue: int
    turn: int


@dataclass(frozen=True, slots=True)
class Generate:
    engine: str
    request: int
    trajectory: str
    turn: int
    temperature: float
    seed: int
    prefill_only: bool = False
    kv: str = ""  # of the prefill that went before


@dataclass(frozen=True, slots=True)
class AbortRequest:
    engine: str
    request: int


@dataclass(frozen=True, slots=True)
class Forget:
    engine: str
    trajectory: str


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand the answer of this request to the env worker."""

    worker: str
    request: int
    trajectory: str


@dataclass(frozen=True, slots=True)
class Score:
    worker: str
    trajectory: str
    issue: int
    task: str


@dataclass(frozen=True, slots=True)
class Release:
    """Nothing of this trajectory is needed any more."""

    trajectory: str


@dataclass(frozen=True, slots=True)
class SendChunk:
    trainer: str
    step: int
    index: int
    groups: tuple[Group, ...]
    last: bool


@dataclass(frozen=True, slots=True)
class Adopt:
    relay: str
    weights: WeightsId


@dataclass(frozen=True, slots=True)
class PublishAgain:
    trainer: str
    weights: WeightsId


@dataclass(frozen=True, slots=True)
class OfferTransfer:
    source: str
    epoch: int
    weights: WeightsId
    size: int


@dataclass(frozen=True, slots=True)
class JoinTransfer:
    target: str
    epoch: int
    weights: WeightsId
    rank: int
    size: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Install:
    engine: str
    weights: WeightsId


@dataclass(frozen=True, slots=True)
class SaveCheckpoint:
    trainer: str
    version: int


@dataclass(frozen=True, slots=True)
class RecordStep:
    """The step that made `version` is committed; these groups are in it and will never train again."""

    version: int
    attempt: int
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class ValidationDone:
    version: int


@dataclass(frozen=True, slots=True)
class Warn:
    """The user must hear of this."""

    what: Literal["task_failed", "task_quarantined"]
    task: str
    detail: str


@dataclass(frozen=True, slots=True)
class StopRun:
    state: str  # finished | drained | failed
    reason: str


Command = (
    Play | CancelPlay | AskAgain | Generate | AbortRequest | Forget | Deliver | Score | Release | SendChunk | Adopt
    | PublishAgain | OfferTransfer | JoinTransfer | Install | RecordStep | SaveCheckpoint | ValidationDone | Warn
    | StopRun
)  # fmt: skip
