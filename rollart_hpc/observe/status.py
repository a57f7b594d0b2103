"""The status of a run. Owns the format of status.json; does not know how the values are computed.

Every field has a default: a run that died while starting has a short status, and a newer writer may add keys.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from rollart_hpc.errors import SiteError
from rollart_hpc.files import write_atomic
from rollart_hpc.vocabulary import RunState


class AffinityStatus(msgspec.Struct):
    """Why a task with `affinity: auto` has its pools; means over recent turns of training."""

    choice: str = ""  # a value that `affinity` may have
    is_measured: bool = False  # False: too few turns so far, and every pool serves it
    prompt_tokens: float = 0.0  # per turn, with those whose KV was kept
    prefill_tokens: float = 0.0
    decode_tokens: float = 0.0
    reuse: float = 0.0  # share of the prompts that was not prefilled
    turn_s: dict[str, float] = {}  # pool -> seconds of an engine, by the roofline of its class


class TaskStatus(msgspec.Struct):
    score_first: float | None = None  # success in the first validation
    score_last: float | None = None
    validations: int = 0
    trajectories: int = 0  # finished and scored
    groups_trained: int = 0
    success: float | None = None  # of training trajectories, over the whole run
    reward: float | None = None
    pool_share: dict[str, float] = {}  # pool -> share of the task's requests
    turns: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    quarantined: bool = False
    quarantine_reason: str = ""
    last_error: str = ""  # the newest failure of a play
    affinity: AffinityStatus | None = None  # of tasks with `affinity: auto`


class StalenessStatus(msgspec.Struct):
    bound: int = 0
    max_trained: int = 0
    histogram: dict[str, int] = {}  # versions behind -> trained trajectories


class WorkerStatus(msgspec.Struct):
    joined: int = 0
    lost: int = 0
    alive: int = 0
    left: int = 0  # ended normally: idle elastic workers, and all workers of earlier attempts


class PoolStatus(msgspec.Struct):
    engines: int = 0  # alive
    kv_tokens: int = 0  # total capacity of their KV caches, of those that report it
    kv_used_tokens: int = 0  # total of the last reported values


class WeightsStatus(msgspec.Struct):
    transport: str = ""
    collective: str = ""  # between relays, as configured
    transfers: int = 0
    relay_transfers: int = 0
    failures: int = 0
    fallbacks: int = 0  # transfers between relays that used gloo although MPI was configured
    total_s: float = 0.0
    exposed_s: float = 0.0  # how long installs blocked generation, summed over engines
    bytes: int = 0


class WaitStatus(msgspec.Struct):
    get_batch_share: float = 0.0  # of the trainer's time


class Status(msgspec.Struct):
    name: str = ""
    state: RunState = RunState.UNKNOWN
    reason: str = ""
    mode: str = ""
    step: int = 0
    steps: int = 0
    policy_version: int = 0
    attempt: int = 0
    time_s: float = 0.0
    tokens_per_s: float = 0.0
    playing: int = 0  # trajectories in progress
    to_score: int = 0  # transcripts that are waiting for a reward worker or being scored
    progress: int = 0  # increases while the run makes progress
    checkpoint: int = -1  # newest committed version
    validating: int | None = None  # version being validated
    tasks: dict[str, TaskStatus] = {}
    staleness: StalenessStatus = msgspec.field(default_factory=StalenessStatus)
    dropped: dict[str, int] = {}  # by DropReason, or by a reason of another version
    fallbacks: int = 0  # requests outside their task's pool because the pool had no engine
    split_requests: int = 0  # turns prefilled on one pool and decoded on the other
    split_fallbacks: int = 0  # turns of split tasks that one engine served alone
    stray_requests: int = 0  # requests outside their task's pool although the pool had an engine: must stay 0
    workers: dict[str, WorkerStatus] = {}
    aside: dict[str, str] = {}  # workers that get no work, and why
    updates_skipped: int = 0  # their gradients were not finite
    pools: dict[str, PoolStatus] = {}
    weights: WeightsStatus = msgspec.field(default_factory=WeightsStatus)
    wait: WaitStatus = msgspec.field(default_factory=WaitStatus)
    refused: dict[str, int] = {}
    report: str = ""
    updated: str = ""  # when this was written, with the offset from UTC


class GpuHours(msgspec.Struct, frozen=True):
    given: float = 0.0
    idle: float = 0.0


class Cluster(msgspec.Struct, frozen=True):
    """cluster.json: where the run was, for the report."""

    partitions: dict[str, str] = {}  # pool -> partition
    gpu_hours: dict[str, GpuHours] = {}  # by class of the site, once the run is over


def write_status(path: Path, status: Status) -> None:
    write_atomic(path, msgspec.json.format(msgspec.json.encode(status), indent=1) + b"\n")


def read_status(path: Path) -> Status | None:
    """None if there is no status yet."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Status)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SiteError(f"{path} is damaged: {error}", "remove it; a running run writes a new one") from None
