"""All messages of the run and the encoding of their headers. Owns the protocol; opens no socket.

A message is `[header, payload, payload, ...]`: the header is one byte of protocol version and a
msgpack-encoded struct from this file, payloads are raw arrays that the hub forwards untouched.
`frames` in a docstring lists the payloads. `issue` counts how many times a trajectory was issued:
an answer to an older issue is dropped.

What workers send is bounded by its types: msgspec checks lengths and ranges while it decodes, in C. A number that is
not finite is in no range. Who may send what: `wire.permissions`.
"""

from __future__ import annotations

from typing import Annotated, Union

import msgspec
from msgspec import Meta

from rollart_hpc.types import Frame
from rollart_hpc.vocabulary import RunState

PROTOCOL = 2
MAX_FRAME_BYTES = 64 << 20
MAX_FRAMES = 4096
MAX_HEADER_BYTES = 64 << 10  # of a message to the hub
TEXT_CHARS = 2000

Name = Annotated[str, Meta(max_length=255)]  # of a process, node, pool, trajectory or status; a digest
Text = Annotated[str, Meta(max_length=TEXT_CHARS)]  # for people; senders shorten it with `clip`
Count = Annotated[int, Meta(ge=0, le=1 << 31)]
Bytes = Annotated[int, Meta(ge=0, le=1 << 50)]
Number = Annotated[int, Meta(ge=-(1 << 31), le=1 << 31)]
Version = Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)]  # of a policy; -1 = none
Request = Annotated[int, Meta(ge=0, le=(1 << 62))]
Hash = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Credits = Annotated[int, Meta(ge=0, le=1 << 20)]
Ranks = Annotated[int, Meta(ge=1, le=1 << 16)]
Port = Annotated[int, Meta(ge=1, le=65535)]
Finite = Annotated[float, Meta(ge=-1e9, le=1e9)]
Seconds = Finite
Names = Annotated[list[Name], Meta(max_length=4096)]


def clip(text: str) -> str:
    """A text that fits a message."""
    return text[:TEXT_CHARS]


class BadMessage(Exception):
    """A frame that is not a valid message. The hub logs and counts it, and the run continues."""


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Exempt from garbage collection: no message is part of a cycle, and a controller holds many thousands."""


# --- membership ------------------------------------------------------------------------------


class Hello(Message):
    """worker -> controller, first message and again after `WhoAreYou`."""

    role: Name
    name: Name  # unique in the run, e.g. "engine-compute-0"; also the socket's identity
    node: Name
    pool: Name  # of an engine, "" otherwise
    capacity: Credits  # maximum requests in flight: the controller's credits for this worker
    package: Name
    attempt: Count
    incarnation: Name  # unique for every process start
    pid: Count
    version: Version = -1  # trainer: policy_version loaded; -1 = none
    num_ranks: Ranks = 1  # engine: how many of its processes join a weight transfer
    kv_tokens: Bytes = 0  # engine: capacity of its KV cache; 0 = unknown
    speed: Finite = 1.0  # engine: relative to others of the same capacity


class Welcome(Message):
    heartbeat_s: float
    silence_s: float  # exit if the controller is silent for this long
    clock_s: float  # controller's monotonic clock, for the trace


class Refused(Message):
    """The receiver must exit with this reason: older attempt, other package version, name taken over."""

    reason: str


class WhoAreYou(Message):
    """controller -> a worker it does not know (anymore): send Hello again."""


class Heartbeat(Message):
    sent_s: float  # sender's monotonic clock
    age_s: float = 0.0  # since its main loop last came around; 0 while it waits for work
    work: int = 0  # engines: tokens computed since the last heartbeat


class HeartbeatAck(Message):
    sent_s: float  # copied from the Heartbeat
    clock_s: float  # controller's monotonic clock


class Bye(Message):
    reason: Text
    is_leaving: bool = False  # the process chose to leave: it was idle, or its lifetime is over


class Stop(Message):
    """controller -> worker: finish cleanly and exit 0."""

    reason: str


class Exited(Message):
    """supervisor -> controller: a process has exited (faster than waiting for missing heartbeats)."""

    name: Name
    incarnation: Name
    code: Number


class Warned(Message):
    """worker -> controller -> supervisor: this process got SIGTERM, so the machine will soon end the job."""

    name: Name


class Silent(Message):
    """controller -> supervisor: this process has been silent for too long; kill it."""

    name: str
    incarnation: str


class Progress(Message):
    """controller -> supervisor, about once a second if it changed: input of the watchdog and elastic scaling."""

    state: RunState
    progress: int  # grows while anything moves
    to_score: int  # transcripts waiting for a reward worker or being scored
    alive: dict[str, int]  # processes by role
    turns: dict[str, int] = {}  # running or waiting, by pool; "": for any pool, and none has an engine


class Drain(Message):
    """supervisor -> controller: save a checkpoint, then stop the run (`reason`: cancelled, limit).

    `at_once`: without a checkpoint; there is only time for the processes to leave.
    """

    reason: Name
    at_once: bool = False


class TrainerAttempt(Message):
    """supervisor -> controller: the trainer's ranks start again, as this attempt. No other may join from now on."""

    attempt: Count


class SaveWanted(Message):
    """supervisor -> controller: save a checkpoint now and go on; the trainer may soon be lost."""


# --- agents ----------------------------------------------------------------------------------
# Between the supervisor and the agent of a node, over a hub of their own.


class Offer(Message):
    """agent -> supervisor, after Hello: what its node has for the run."""

    host: Name
    nodes: Names  # of the plan, that it stands for; empty: the supervisor knows them by host and job
    job: Name  # Slurm's id of the job that contains it; "" = none
    hardware: Name  # class of the site, for a node that is not in the plan
    pool: Name  # pool whose engines it offers to run, for a node that is not in the plan
    gpus: Names  # as in CUDA_VISIBLE_DEVICES
    cpus: Count
    memory_gb: Finite
    is_guest: bool = False  # not in the plan: the supervisor finds work for it


class Declined(Message):
    """supervisor -> agent of a guest: there is no work for its node."""

    reason: str
    fix: str


class Await(Message):
    """supervisor -> agent: end every process and wait for the next supervisor of the run, if you may."""


class Launch(Message):
    """supervisor -> agent: start this process. `arguments` are those of the agent's own Python."""

    name: str
    role: str
    incarnation: str
    attempt: int
    arguments: list[str]
    variables: dict[str, str]
    log: str
    gpus: list[int]  # numbers among the node's GPUs
    cpus: int  # to pin it to; 0 = any


class Launched(Message):
    """agent -> supervisor."""

    name: Name
    incarnation: Name
    pid: Count


class Signalled(Message):
    """supervisor -> agent: send this signal to the process."""

    name: str
    incarnation: str
    number: int


class EndProcess(Message):
    """supervisor -> agent: wait `grace_s`, then SIGTERM, wait `term_s`, then SIGKILL to all it started."""

    name: str
    incarnation: str
    grace_s: float
    term_s: float


class Died(Message):
    """agent -> supervisor: the process has ended, or could not be started (`reason`). Negative codes are signals."""

    name: Name
    incarnation: Name
    code: Number
    reason: Text = ""


# --- environments ----------------------------------------------------------------------------


class Play(Message):
    """controller -> env worker: play one trajectory."""

    trajectory: str
    issue: int
    task: str
    seed: int  # seed of the environment, shared by the group
    sample_seed: int  # seed of this member's sampling; turn t samples with (sample_seed, t)


class Cancel(Message):
    """controller -> env worker: close it immediately; send no answer."""

    trajectory: str
    issue: int
    reason: str


class TurnWanted(Message):
    """env worker -> controller. frames: new ids (int32): all ids if `full`, else those after the prefix."""

    trajectory: Name
    issue: Count
    turn: Count
    prefix_tokens: Count
    prefix_hash: Hash  # see wire.prefix
    max_new_tokens: Annotated[int, Meta(ge=1, le=1 << 31)]
    full: bool


class Resend(Message):
    """controller -> env worker: request this turn again, with all tokens."""

    trajectory: str
    issue: int
    turn: int


class Ended(Message):
    """env worker -> controller. frames: transcript (msgpack), then ids, logprobs, versions of all samples, joined."""

    trajectory: Name
    issue: Count
    status: Name  # vocabulary.DONE or a DropReason
    detail: Text
    num_turns: Count
    num_tokens: Count
    sample_lengths: list[int]
    reset_s: Seconds = 0.0
    env_s: Seconds = 0.0
    is_cut: bool = False  # by max_turns, max_tokens or, in its last answer, max_response_tokens
    states: list[int] = []  # a key of the observation before each turn
    turn_rewards: list[float] = []  # filled in by the controller once the trajectory is scored


# --- engines ---------------------------------------------------------------------------------


class Generate(Message):
    """controller -> engine. frames: new ids (int32), as in TurnWanted."""

    request: int
    trajectory: str
    prefix_tokens: int
    prefix_hash: int
    full: bool
    max_new_tokens: int
    temperature: float
    seed: int  # used only if the run is deterministic
    prefill_only: bool = False  # answered with Prefilled
    kv: str = ""  # from Prefilled: KV of the prompt, made by another engine
    forget: list[str] = []  # trajectories to forget first, as with Forget


class Abort(Message):
    """controller -> engine: stop this request, even while it decodes; send no answer."""

    request: int


class Forget(Message):
    """controller -> engine: these trajectories ended; free everything held for them."""

    trajectories: list[str]


class PrefixMissing(Message):
    request: Request


class Prefilled(Message):
    """engine -> controller: the KV of this prompt is ready for the engine that decodes it."""

    request: Request
    trajectory: Name
    kv: Annotated[str, Meta(max_length=4096)]
    num_prefill_tokens: Count
    queue_s: Seconds = 0.0
    prefill_s: Seconds = 0.0
    kv_used_tokens: Bytes = 0  # KV in use by all trajectories of the engine


class Generated(Message):
    """engine -> controller -> env worker. frames: ids, logprobs, versions of the sampled tokens."""

    request: Request
    trajectory: Name
    num_prefill_tokens: Count
    num_decode_tokens: Count
    queue_s: Seconds = 0.0
    prefill_s: Seconds = 0.0
    decode_s: Seconds = 0.0
    kv_used_tokens: Bytes = 0  # KV in use by all trajectories of the engine


# --- weights ---------------------------------------------------------------------------------


class Published(Message):
    """trainer -> controller. staged: the buckets are in its node's shared memory; direct: ready to send."""

    attempt: Count
    version: Version
    num_bytes: Bytes
    seconds: Seconds


class Adopt(Message):
    """controller -> relay of the trainer's node: take over these weights."""

    attempt: int
    version: int


class PublishAgain(Message):
    """controller -> trainer: nobody holds a good copy of this version; publish it again if you still have it."""

    attempt: int
    version: int


class Held(Message):
    """relay -> controller: engines on my node can install these weights."""

    attempt: Count
    version: Version
    num_bytes: Bytes
    seconds: Seconds


class TransferOffer(Message):
    """controller -> source (relay, or trainer if direct): open a rendezvous for `size` ranks as rank 0."""

    epoch: int
    attempt: int
    version: int
    size: int


class TransferReady(Message):
    """source -> controller: targets can join. Without the secret, which the source made for this epoch, nobody can."""

    epoch: Count
    host: Name
    port: Port
    secret: Name


class TransferJoin(Message):
    """controller -> target (relay, or engine if direct). `rank`: the first of the target's ranks."""

    epoch: int
    attempt: int
    version: int
    rank: int
    size: int
    host: str
    port: int
    secret: str


class TransferFailed(Message):
    """source or target -> controller: the collective of this epoch failed."""

    epoch: Count
    reason: Text


class TransferSent(Message):
    """source -> controller: all buckets of this epoch have been sent."""

    epoch: Count
    num_bytes: Bytes
    seconds: Seconds
    collective: Name = ""  # gloo, mpi or nccl: what the epoch actually used


class Install(Message):
    """controller -> engine: install from the node's shared memory."""

    attempt: int
    version: int


class Installed(Message):
    attempt: Count
    version: Version
    num_bytes: Bytes
    seconds: Seconds
    exposed_s: Seconds  # how long generation was paused


class InstallFailed(Message):
    attempt: Count
    version: Version
    reason: Text


# --- rewards ---------------------------------------------------------------------------------


class ScoreWanted(Message):
    """controller -> reward worker. frames: transcript."""

    trajectory: str
    issue: int
    task: str


class Scored(Message):
    trajectory: Name
    issue: Count
    reward: float  # checked by the controller: one that is not finite is a failure of this worker
    success: bool
    seconds: Seconds
    turn_rewards: list[float] = []  # none, or one for each turn


class ScoreFailed(Message):
    trajectory: Name
    issue: Count
    reason: Text


# --- training --------------------------------------------------------------------------------


class BatchWanted(Message):
    """trainer -> controller: at `version`, ready for the step version -> version + 1."""

    version: Version


class ChunkItem(Message):
    """One trajectory of a chunk. Its frames are ids, logprobs, versions, split into `sample_lengths`."""

    trajectory: str
    group: int
    task: str
    reward: float
    sample_lengths: list[int]
    success: bool = False
    is_cut: bool = False
    states: list[int] = []
    turn_rewards: list[float] = []


class Chunk(Message):
    """controller -> trainer. frames: three per item, in order. Whole groups only; `last` ends the batch."""

    step: int
    index: int
    items: list[ChunkItem]
    last: bool


class Committed(Message):
    """trainer -> controller: the optimizer step version -> version + 1 is done."""

    step: Count
    version: Version  # the new one: step + 1
    parent_digest: Name
    digest: Name
    metrics: Annotated[dict[Name, float], Meta(max_length=1000)]
    wait_s: Seconds  # time spent waiting for chunks
    train_s: Seconds


class Save(Message):
    """controller -> trainer: write your part of the checkpoint into this existing directory."""

    version: int
    directory: str


class Saved(Message):
    version: Version
    error: Text  # "" = success


AnyMessage = Union[
    Hello, Welcome, Refused, WhoAreYou, Heartbeat, HeartbeatAck, Bye, Stop, Exited, Silent, Warned, Progress, Drain,
    TrainerAttempt, SaveWanted, Offer, Declined, Await, Launch, Launched, Signalled, EndProcess, Died,
    Play, Cancel, TurnWanted, Resend, Ended,
    Generate, Abort, Forget, PrefixMissing, Prefilled, Generated,
    Published, PublishAgain, Adopt, Held, TransferOffer, TransferReady, TransferJoin, TransferFailed, TransferSent,
    Install, Installed, InstallFailed,
    ScoreWanted, Scored, ScoreFailed,
    BatchWanted, Chunk, Committed, Save, Saved,
]  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyMessage)
_PREFIX = bytes([PROTOCOL])


def encode(message: Message) -> bytes:
    return _PREFIX + _encoder.encode(message)


def decode(header: Frame) -> AnyMessage:
    if len(header) < 2:
        raise BadMessage("empty header")
    if header[0] != PROTOCOL:
        raise BadMessage(f"protocol version {header[0]}, expected {PROTOCOL}")
    try:
        message: AnyMessage = _decoder.decode(header[1:])  # a copy of so few bytes costs less than a view
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadMessage(f"header does not parse: {error}") from None
    return message
