"""Transcripts of scored trajectories. Owns their format, and which trajectories are kept; see `shards` for the files.

Nobody sends transcripts for this: who has them writes them. An env worker adds `Facts` to the transcript that the
reward worker gets anyway, and the reward worker writes a line when it has scored it. The trainer writes the advantages
of the trajectories whose tokens are kept. Readers join the two, and the steps of the ledger, by the trajectory's id.
"""

from __future__ import annotations

import re
import zlib
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

PLAYS, ADVANTAGES = "plays", "advantages"  # kinds of shards
DECIMALS = 6
_TRAIN = re.compile(r"a(\d+)\.g(\d+)\.m(\d+)")
_VALIDATE = re.compile(r"a(\d+)\.v(\d+)\.(.+)\.(\d+)")


class Name(msgspec.Struct, frozen=True):
    """What the id of a trajectory says."""

    purpose: str  # train, validate
    attempt: int = 0
    group: int | None = None
    member: int | None = None  # of its group; of a validation: the number of the play
    version: int | None = None  # of a validation


def parsed(trajectory: str) -> Name:
    if found := _TRAIN.fullmatch(trajectory):
        return Name("train", int(found[1]), int(found[2]), int(found[3]))
    if found := _VALIDATE.fullmatch(trajectory):
        return Name("validate", int(found[1]), None, int(found[4]), int(found[2]))
    return Name("train")


def is_chosen(trajectory: str, share: float) -> bool:
    """The same in every process. Groups are kept as a whole; what a smaller share keeps, a larger one keeps too."""
    found = _TRAIN.fullmatch(trajectory)
    unit = trajectory[: found.start(3)] if found else trajectory
    return zlib.crc32(unit.encode()) < share * (1 << 32)


class Facts(msgspec.Struct, omit_defaults=True):
    """What only the env worker knows. Arrays are raw bytes of int32, float32, int32."""

    seed: int = 0
    num_tokens: int = 0
    num_sampled: int = 0
    first_version: int = -1  # of its sampled tokens
    last_version: int = -1
    is_cut: bool = False
    reset_s: float = 0.0
    env_s: float = 0.0
    policy_s: float = 0.0
    lengths: list[int] = []  # of its samples, if their tokens are kept
    ids: bytes = b""
    logprobs: bytes = b""
    versions: bytes = b""


class Tokens(msgspec.Struct):
    """Of one sample. Where the policy sampled no token, the log-prob is 0 and the version -1."""

    ids: list[int]
    logprobs: list[float]
    versions: list[int]
    advantages: list[float] | None = None  # 0 where nothing is trained; None: not trained, or not known


class Play(msgspec.Struct):
    """A line of a shard: a scored trajectory."""

    trajectory: str
    task: str
    purpose: str
    attempt: int
    group: int | None
    member: int | None
    validation: int | None  # version that was validated
    issue: int
    seed: int
    reward: float
    success: bool
    stop: str  # done: by the environment; limit: by max_turns, max_tokens or max_response_tokens
    turns: int
    tokens: int
    sampled_tokens: int
    first_version: int
    last_version: int
    reset_s: float
    env_s: float
    policy_s: float  # waiting for answers
    reward_s: float
    scored_at: float  # seconds since 1970, by the clock of the reward worker
    outcome: dict[str, Any]
    messages: list[dict[str, str]]
    turn_rewards: list[float] = []  # if its reward function gives them
    samples: list[Tokens] = []  # of the share whose tokens are kept
    step: int | None = None  # that trained it; readers take it from the ledger


class Advantages(msgspec.Struct):
    """A line of a shard of the trainer: a number for all trained tokens of a sample, or one for each."""

    trajectory: str
    attempt: int
    step: int
    samples: list[float | list[float]]


def samples_of(facts: Facts) -> list[Tokens]:
    if not facts.lengths:
        return []
    ids, versions = (np.frombuffer(data, np.int32) for data in (facts.ids, facts.versions))
    logprobs = rounded(np.frombuffer(facts.logprobs, np.float32))
    ends = np.cumsum(facts.lengths)
    parts = [slice(int(end) - length, int(end)) for end, length in zip(ends, facts.lengths, strict=True)]
    return [Tokens(ids[part].tolist(), logprobs[part], versions[part].tolist()) for part in parts]


def rounded(values: NDArray[np.float32]) -> list[float]:
    found: list[float] = np.round(values.astype(np.float64), DECIMALS).tolist()
    return found


def spread(tokens: Tokens, advantage: float | list[float]) -> list[float]:
    """A value for every token, from those of the tokens that can be trained: sampled ones, except a first one."""
    places = [place for place in range(1, len(tokens.versions)) if tokens.versions[place] >= 0]
    values = advantage if isinstance(advantage, list) else [advantage] * len(places)
    found = [0.0] * len(tokens.versions)
    for place, value in zip(places, values, strict=True):
        found[place] = value
    return found
