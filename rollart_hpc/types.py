"""The data passed between stages. Owns shapes and names; does no I/O and imports no torch.

Worked example: a two-turn trajectory of FrozenLake under policy versions 4 and 5.

    ids       [ 11 12 13 | 40  2 | 14 15 | 41  2 ]     int32, prompt | answer | observation | answer
    logprobs  [  0  0  0 |-.7 -.1|  0  0 |-.5 -.2]     float32, 0 where the policy did not sample
    versions  [ -1 -1 -1 |  4  4 | -1 -1 |  4  5 ]     int32, -1 where the policy did not sample
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Role = Literal["controller", "env", "engine", "relay", "trainer", "reward", "supervisor", "agent"]
Purpose = Literal["train", "validate"]
Frame = bytes | memoryview

OBSERVED = -1  # the version of a token that the policy did not sample


class WeightsId(NamedTuple):
    """Identifies weights. `attempt` grows at every restore, so a rolled-back version can't be taken for a later one."""

    attempt: int
    version: int


@dataclass(slots=True)
class TokenRecord:
    """Every token of one trajectory, observed or sampled, as three arrays of equal length."""

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]

    @classmethod
    def empty(cls) -> TokenRecord:
        return cls(np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.int32))

    @classmethod
    def from_frames(cls, frames: list[Frame] | tuple[Frame, ...]) -> TokenRecord:
        ids, logprobs, versions = frames
        record = cls(
            np.frombuffer(ids, np.int32), np.frombuffer(logprobs, np.float32), np.frombuffer(versions, np.int32)
        )
        if not len(record.ids) == len(record.logprobs) == len(record.versions):
            raise ValueError("ids, logprobs and versions have different lengths")
        return record

    def to_frames(self) -> list[Frame]:
        arrays: tuple[NDArray[Any], ...] = (self.ids, self.logprobs, self.versions)
        return [np.ascontiguousarray(array).data.cast("B") for array in arrays]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def sampled(self) -> NDArray[np.bool_]:
        return np.not_equal(self.versions, OBSERVED)


@dataclass(slots=True)
class Sample:
    """One trainable token sequence with its reward. The algorithm fills in what stands last.

    `advantages` has a value for every sampled token but a first one, which no token predicts.
    """

    trajectory: str
    group: int
    task: str
    record: TokenRecord
    reward: float
    success: bool = False
    is_cut: bool = False  # its trajectory was ended by a limit
    states: list[int] = field(default_factory=list)  # of its trajectory: a key of the observation before each turn
    turn_rewards: list[float] = field(default_factory=list)  # of its trajectory; [] = all of `reward` at its end
    advantages: NDArray[np.float32] | None = None  # None: 0 everywhere
    is_left_out: bool = False  # not trained on, but counted
    values: NDArray[np.float32] | None = None  # of a critic, for the same tokens as `advantages`
    returns: NDArray[np.float32] | None = None  # what it shall learn


@dataclass(slots=True)
class TrainGroup:
    """A complete group as the trainer receives it: `group_size` trajectories, each with one or more samples."""

    group: int
    task: str
    samples: list[Sample] = field(default_factory=list)
