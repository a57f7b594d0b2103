"""The events the core handles and the commands it returns. Neither carries a payload.

Payloads (tokens, transcripts, weights) stay with the driver of the core. A command names the trajectory or request
whose payload it needs.
"""

from __future__ import annotations

import msgspec

from rollart_hpc.flow.state import Group
from rollart_hpc.types import Role, WeightsId
from rollart_hpc.vocabulary import DropReason, EventKind, RunState


class Fact(msgspec.Struct, frozen=True, gc=False, tag=True):
    """An event or a command, with its name as a tag in recordings.

    A struct, because every turn makes four and a frozen dataclass is slow to make.
    """


# --- events ----------------------------------------------------------------------------------


class Joined(Fact):
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


class Lost(Fact):
    worker: str
    reason: str = ""


class Beat(Fact):
    """A sign of life that says more than a heartbeat: the main loop is late, tokens were computed, an answer came."""

    worker: str
    age_s: float = 0.0  # since the main loop last came around; 0 if it waits for work
    work: int = 0  # what it did since its last heartbeat


class TurnWanted(Fact):
    trajectory: str
    issue: int
    turn: int
    num_tokens: int = 0  # length of the prompt, including the cached prefix
    max_new_tokens: int = 0


class Generated(Fact):
    request: int
    first_version: int  # -1: nothing was sampled, the engine had no room for this turn
    last_version: int
    num_prefill_tokens: int = 0
    num_decode_tokens: int = 0
    failure: DropReason = DropReason.NO_ROOM  # why nothing was sampled
    detail: str = ""  # of the failure


class Prefilled(Fact):
    """The first half of a split turn is done."""

    request: int
    kv: str
    num_prefill_tokens: int = 0


class PrefixMissing(Fact):
    request: int


class Ended(Fact):
    trajectory: str
    issue: int
    failure: DropReason | None  # None: the trajectory was played to its end
    num_turns: int = 0
    detail: str = ""  # of the failure


class Scored(Fact):
    trajectory: str
    issue: int
    reward: float
    success: bool


class ScoreFailed(Fact):
    trajectory: str
    issue: int
    worker: str = ""
    detail: str = ""


class BatchWanted(Fact):
    version: int


class Committed(Fact):
    version: int
    wait_s: float = 0.0
    train_s: float = 0.0
    is_skipped: bool = False  # gradients were not finite, so the weights did not change


class Saved(Fact):
    version: int
    error: str = ""  # "" = good


class Published(Fact):
    weights: WeightsId


class Held(Fact):
    relay: str
    weights: WeightsId


class TransferReady(Fact):
    epoch: int
    host: str = ""
    port: int = 0
    secret: str = ""


class TransferFailed(Fact):
    epoch: int
    worker: str


class TransferSent(Fact):
    epoch: int
    collective: str = ""


class Installed(Fact):
    engine: str
    weights: WeightsId
    num_bytes: int = 0
    seconds: float = 0.0
    exposed_s: float = 0.0


class InstallFailed(Fact):
    engine: str
    weights: WeightsId


class DrainWanted(Fact):
    reason: str
    at_once: bool = False  # without a checkpoint


class SaveWanted(Fact):
    """Save a checkpoint and go on: the trainer may soon be lost."""


class EndNear(Fact):
    """A process got SIGTERM: the machine ends its job. Failures of environments there say nothing about tasks."""

    worker: str


class Tick(Fact):
    now: float


class GoOn(Fact):
    """No event: continue with the backlog (`Core.has_backlog`)."""


Event = (
    Joined | Lost | Beat | TurnWanted | Generated | Prefilled | PrefixMissing | Ended | Scored | ScoreFailed
    | BatchWanted | Committed | Saved | Published | Held | TransferReady | TransferFailed | TransferSent | Installed
    | InstallFailed | DrainWanted | SaveWanted | EndNear | Tick | GoOn
)  # fmt: skip

# --- commands --------------------------------------------------------------------------------


class Play(Fact):
    worker: str
    trajectory: str
    issue: int
    task: str
    seed: int
    sample_seed: int


class CancelPlay(Fact):
    worker: str
    trajectory: str
    issue: int
    reason: str


class AskAgain(Fact):
    """Ask the env worker to send this turn again, with all tokens."""

    worker: str
    trajectory: str
    issue: int
    turn: int


class Generate(Fact):
    engine: str
    request: int
    trajectory: str
    turn: int
    temperature: float
    seed: int
    prefill_only: bool = False
    kv: str = ""  # from the prefill of this turn


class AbortRequest(Fact):
    engine: str
    request: int


class Forget(Fact):
    engine: str
    trajectory: str


class Deliver(Fact):
    """Hand the answer of this request to the env worker."""

    worker: str
    request: int
    trajectory: str


class Score(Fact):
    worker: str
    trajectory: str
    issue: int
    task: str


class Release(Fact):
    """The payloads of this trajectory can be freed."""

    trajectory: str


class SendChunk(Fact):
    trainer: str
    step: int
    index: int
    groups: tuple[Group, ...]
    last: bool


class Adopt(Fact):
    relay: str
    weights: WeightsId


class PublishAgain(Fact):
    trainer: str
    weights: WeightsId


class OfferTransfer(Fact):
    source: str
    epoch: int
    weights: WeightsId
    size: int


class JoinTransfer(Fact):
    target: str
    epoch: int
    weights: WeightsId
    rank: int
    size: int
    host: str
    port: int
    secret: str


class Install(Fact):
    engine: str
    weights: WeightsId


class SaveCheckpoint(Fact):
    trainer: str
    version: int


class RecordStep(Fact):
    """The step that made `version` is committed; these groups are in it and will never train again."""

    version: int
    attempt: int
    groups: tuple[Group, ...]


class ValidationDone(Fact):
    version: int


class Replace(Fact):
    """This worker owes answers and shows no sign of progress. Have its process ended and started again."""

    worker: str
    reason: str


class Warn(Fact):
    """Tell the user."""

    what: EventKind
    task: str  # or the worker
    detail: str


class StopRun(Fact):
    state: RunState  # finished, drained or failed
    reason: str


Command = (
    Play | CancelPlay | AskAgain | Generate | AbortRequest | Forget | Deliver | Score | Release | SendChunk | Adopt
    | PublishAgain | OfferTransfer | JoinTransfer | Install | RecordStep | SaveCheckpoint | ValidationDone | Replace
    | Warn | StopRun
)  # fmt: skip
