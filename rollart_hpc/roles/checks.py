"""What a message must fulfil before it becomes an event. Owns those checks; changes nothing.

msgspec has checked every field by itself (`wire.messages`), and the hub that the sender's role may send the message.
Here it is compared with its payloads and with what the core expects of this very sender:

    Forged        somebody else was asked, or nobody: the message is refused, and nothing else happens
    Malformed     the right sender, but it can't be used: `failure_of` ends the trajectory as the sender's fault

A message that merely comes too late passes: the core counts it as superseded.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from rollart_hpc.flow import events as ev
from rollart_hpc.flow.core import Core
from rollart_hpc.flow.state import State, Trajectory
from rollart_hpc.roles.payloads import Payloads
from rollart_hpc.types import OBSERVED, Frame
from rollart_hpc.vocabulary import DONE, DropReason
from rollart_hpc.wire import messages as ms

_VERSION = struct.Struct("<i").unpack_from


class Forged(Exception):
    """Not from whom the core expects it."""


class Malformed(ValueError):
    """From the right sender, but unusable."""


Frames = list[Frame]


class Checks:
    def __init__(self, core: Core, payloads: Payloads, vocabulary: int = 0) -> None:
        """`vocabulary`: token ids are below this; 0 = unknown."""
        self._core, self._payloads, self._vocabulary = core, payloads, vocabulary
        self._trajectories, self._requests = core.trajectories.all, core.trajectories.requests
        self.trainer_attempt = core.attempt  # the only one that may join as trainer; the supervisor announces the next
        self._checks: dict[type, Callable[[str, Any, Frames], bool]] = {
            ms.TurnWanted: self._turn_wanted, ms.Ended: self._ended, ms.Generated: self._generated,
            ms.Prefilled: self._prefilled, ms.PrefixMissing: self._prefix_missing,
            ms.Scored: self._scored, ms.ScoreFailed: self._score_failed,
            ms.BatchWanted: self._from_trainer, ms.Committed: self._committed, ms.Saved: self._saved,
            ms.Published: self._published, ms.Held: self._has_weights, ms.Installed: self._has_weights,
            ms.InstallFailed: self._has_weights, ms.TransferReady: self._transfer_ready,
            ms.TransferFailed: self._transfer_failed, ms.Warned: self._warned,
        }  # fmt: skip

    def check(self, name: str, message: ms.AnyMessage, frames: Frames) -> bool:
        """Raises Forged or Malformed. Returns whether the core waits for this message, and thus for its payloads."""
        check = self._checks.get(type(message))
        return check is None or check(name, message, frames)

    def judge(self, hello: ms.Hello) -> str:
        """What is wrong with a Hello, as far as the run is concerned; "" = nothing."""
        if hello.attempt > self.trainer_attempt:
            return f"attempt {hello.attempt} was not announced, the run is at attempt {self.trainer_attempt}"
        if hello.role != "trainer":
            return ""
        if hello.attempt != self.trainer_attempt:
            return f"attempt {hello.attempt} of the trainer is over, the run is at attempt {self.trainer_attempt}"
        if hello.capacity and not 0 <= hello.version <= self._core.version:
            return f"trainer at version {hello.version}, the run is at version {self._core.version}"
        return ""

    # --- trajectories ------------------------------------------------------------------------

    def _stepping(self, name: str, trajectory: str, issue: int) -> Trajectory | None:
        found = self._trajectories.get(trajectory)
        if found is None or found.issue != issue or found.state is not State.STEPPING:
            return None
        if found.env != name:
            raise Forged(f"{trajectory} is played by {found.env}")
        return found

    def _turn_wanted(self, name: str, m: ms.TurnWanted, frames: Frames) -> bool:
        if self._stepping(name, m.trajectory, m.issue) is None:
            return False
        if len(frames) != 1 or len(frames[0]) & 3:
            raise Malformed(f"frames of {[len(frame) for frame in frames][:8]} bytes, expected one of int32")
        if not m.full and self._payloads.asked_again.get(m.trajectory) == (m.issue, m.turn):
            raise Malformed(f"turn {m.turn} was asked for with all tokens, but came without them again")
        return True

    def _ended(self, name: str, m: ms.Ended, frames: Frames) -> bool:
        trajectory = self._stepping(name, m.trajectory, m.issue)
        if trajectory is None:
            return False
        if m.status != DONE:
            return False  # its payloads have no use
        if len(frames) != 4:
            raise Malformed(f"{len(frames)} frames, expected a transcript and three arrays")
        _check_lengths(m, frames)
        self._check_record(trajectory, frames)
        return True

    def _check_record(self, trajectory: Trajectory, frames: Frames) -> None:
        _, ids, logprobs, versions = frames
        largest = int(np.frombuffer(ids, np.uint32).max())  # a negative id is larger than any vocabulary
        if self._vocabulary and largest >= self._vocabulary:
            raise Malformed(f"token id {largest}, expected ids below {self._vocabulary}")
        if not math.isfinite(np.frombuffer(logprobs, np.float32).sum()):
            raise Malformed("a log-prob is not finite")
        labels = np.frombuffer(versions, np.int32)
        oldest, newest = labels.min(), labels.max()
        if newest > trajectory.last_version or oldest < OBSERVED:
            raise Malformed(f"versions {oldest} to {newest}, but it was answered up to {trajectory.last_version}")
        sampled = labels[labels != OBSERVED]
        if sampled.size and sampled.min() < trajectory.first_version:
            raise Malformed(f"version {sampled.min()}, but it was answered from {trajectory.first_version} on")

    # --- engines -----------------------------------------------------------------------------

    def _asked(self, name: str, request: int) -> Trajectory | None:
        found = self._requests.get(request)
        if found is not None and found.server != name:
            raise Forged(f"request {request} is with {found.server}")
        return found

    def _generated(self, name: str, m: ms.Generated, frames: Frames) -> bool:
        trajectory = self._asked(name, m.request)
        if trajectory is None:
            return False
        if trajectory.id != m.trajectory:
            raise Malformed(f"request {m.request} is about {trajectory.id}, not {m.trajectory}")
        if len(frames) != 3:
            raise Malformed(f"{len(frames)} frames, expected three arrays")
        size = len(frames[0])
        if size & 3 or not size == len(frames[1]) == len(frames[2]):
            raise Malformed("ids, logprobs and versions have different lengths")
        if not size:
            return True
        turn = self._payloads.turns.get(m.trajectory)
        if turn is not None and size > 4 * turn[0].max_new_tokens:
            raise Malformed(f"{size // 4} tokens, expected at most {turn[0].max_new_tokens}")
        (first,), (last,), newest = _VERSION(frames[2]), _VERSION(frames[2], size - 4), self._newest()[1]
        if not 0 <= first <= newest or not 0 <= last <= newest:
            raise Malformed(f"versions {first} to {last}, but the newest one is {newest}")
        return True

    def _prefilled(self, name: str, m: ms.Prefilled, frames: Frames) -> bool:
        trajectory = self._asked(name, m.request)
        if trajectory is not None and trajectory.id != m.trajectory:
            raise Malformed(f"request {m.request} is about {trajectory.id}, not {m.trajectory}")
        return trajectory is not None

    def _prefix_missing(self, name: str, m: ms.PrefixMissing, frames: Frames) -> bool:
        trajectory = self._asked(name, m.request)
        if trajectory is None:
            return False
        turn = self._payloads.turns.get(trajectory.id)
        if turn is not None and turn[0].full:
            raise Malformed(f"request {m.request} had all tokens, so no prefix can be missing")
        return True

    # --- rewards -----------------------------------------------------------------------------

    def _scored(self, name: str, m: ms.Scored, frames: Frames) -> bool:
        self._score_failed(name, m, frames)
        if not math.isfinite(m.reward):
            raise Malformed(f"the reward is {m.reward}, expected a finite number")
        if not all(map(math.isfinite, m.turn_rewards)):
            raise Malformed("a turn's reward is not a finite number")
        return True

    def _score_failed(self, name: str, m: ms.Scored | ms.ScoreFailed, frames: Frames) -> bool:
        found = self._trajectories.get(m.trajectory)
        if found is not None and found.issue == m.issue and found.reward_worker not in ("", name):
            raise Forged(f"{m.trajectory} is scored by {found.reward_worker}")
        return True

    # --- training ----------------------------------------------------------------------------

    def _from_trainer(self, name: str, m: ms.Message, frames: Frames) -> bool:
        trainer = self._core.publisher.trainer
        if trainer is None or trainer.name != name:
            raise Forged(f"the trainer is {trainer.name if trainer else 'not there'}")
        return True

    def _committed(self, name: str, m: ms.Committed, frames: Frames) -> bool:
        self._from_trainer(name, m, frames)
        core = self._core
        if m.version != core.version + 1 or m.step != core.version or not core.batches.is_closed:
            sent = "all" if core.batches.is_closed else "part"
            raise Forged(f"step {m.step} -> {m.version}, but {sent} of the batch of step {core.version} was sent")
        return True

    def _saved(self, name: str, m: ms.Saved, frames: Frames) -> bool:
        self._from_trainer(name, m, frames)
        if m.version > self._core.version:
            raise Forged(f"version {m.version}, but the run is at {self._core.version}")
        return True

    def _published(self, name: str, m: ms.Published, frames: Frames) -> bool:
        self._from_trainer(name, m, frames)
        if (m.attempt, m.version) > (self._core.attempt, self._core.version) or m.version < 0:
            raise Forged(f"version {m.version} of attempt {m.attempt}, but the run is at {self._core.version}")
        return True

    # --- weights -----------------------------------------------------------------------------

    def _newest(self) -> tuple[int, int]:
        return self._core.publisher.newest or (self._core.attempt, -1)

    def _has_weights(self, name: str, m: ms.Held | ms.Installed | ms.InstallFailed, frames: Frames) -> bool:
        if (m.attempt, m.version) > self._newest() or m.version < 0:
            raise Forged(f"version {m.version} of attempt {m.attempt} was never published")
        return True

    def _transfer_ready(self, name: str, m: ms.TransferReady, frames: Frames) -> bool:
        transfer = self._core.publisher.transfer
        if transfer is not None and transfer.epoch == m.epoch and transfer.source != name:
            raise Forged(f"the source of transfer {m.epoch} is {transfer.source}")
        return True

    def _transfer_failed(self, name: str, m: ms.TransferFailed, frames: Frames) -> bool:
        transfer = self._core.publisher.transfer
        if transfer is not None and transfer.epoch == m.epoch and not transfer.involves(name):
            raise Forged(f"not a member of transfer {m.epoch}")
        return True

    def _warned(self, name: str, m: ms.Warned, frames: Frames) -> bool:
        if m.name != name:
            raise Forged(f"in the name of {m.name}")
        return True


def _check_lengths(m: ms.Ended, frames: Frames) -> None:
    size = len(frames[1])
    if not size or size & 3 or not size == len(frames[2]) == len(frames[3]):
        raise Malformed("ids, logprobs and versions have no tokens or different lengths")
    lengths = m.sample_lengths
    if not lengths or min(lengths) < 1 or 4 * sum(lengths) != size:
        raise Malformed(f"{size // 4} tokens, but {len(lengths)} samples of {sum(lengths)}")
    if len(m.states) not in (0, m.num_turns):
        raise Malformed(f"{m.num_turns} turns, but {len(m.states)} states")
    if m.turn_rewards:
        raise Malformed("rewards of turns, which only reward workers give")


def failure_of(name: str, m: ms.AnyMessage, why: str) -> ev.Event | None:
    """What a malformed message does: it ends the trajectory, or the call, that it is about."""
    match m:
        case ms.TurnWanted():
            return ev.Ended(m.trajectory, m.issue, DropReason.MALFORMED, m.turn, why)
        case ms.Ended():
            return ev.Ended(m.trajectory, m.issue, DropReason.MALFORMED, m.num_turns, why)
        case ms.Generated() | ms.Prefilled() | ms.PrefixMissing():
            return ev.Generated(m.request, -1, -1, failure=DropReason.MALFORMED, detail=why)
        case ms.Scored():
            return ev.ScoreFailed(m.trajectory, m.issue, name, why)
    return None
