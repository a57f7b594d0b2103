"""One trajectory in its env worker: tokens, transcript, limits. Owns the token record; does no I/O but read the clock.

    begin(observation) -> wanted() -> answer(record) -> observe(observation) -> wanted() -> ... -> ended()

Tokens are added to the record only together with the answer that follows them, so it always ends with an answer.
"""

from __future__ import annotations

import time
from hashlib import blake2b
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rollart_hpc.config.schema import TaskConfig
from rollart_hpc.envs.host import Happened
from rollart_hpc.envs.render import Conversation, Renderer
from rollart_hpc.observe.plays import Facts
from rollart_hpc.types import OBSERVED, Frame, TokenRecord
from rollart_hpc.wire.messages import Ended, Play, TurnWanted, clip
from rollart_hpc.wire.prefix import PrefixHash


class EnvTrajectory:
    def __init__(self, play: Play, task: TaskConfig, renderer: Renderer) -> None:
        self.play = play
        self.task = task
        self.num_turns = 0
        self.reset_s = 0.0
        self.env_s = 0.0
        self.policy_s = 0.0  # waiting for answers
        self._asked_s = 0.0
        self.is_waiting = False  # for the policy's answer
        self.is_cut = False  # by a limit
        self._room_given = 0  # tokens that the current answer may have
        self._renderer = renderer
        self._conversation = Conversation(renderer)
        self._samples: list[list[TokenRecord]] = [[]]
        self._prefix = PrefixHash()  # of the current sample, as engines know it
        self._new = np.empty(0, np.int32)  # ids after the prefix, not answered yet
        self._observation = ""
        self._turns: list[tuple[str, str]] = []

    # --- turns -----------------------------------------------------------------------------------

    def begin(self, observation: str) -> None:
        self._observation = observation
        self._new = self._conversation.begin(observation)

    def answer(self, sampled: TokenRecord) -> str:
        """Append the sampled tokens verbatim; returns their text."""
        text = self._conversation.answer(sampled.ids)
        self.policy_s += time.monotonic() - self._asked_s
        self.is_cut = len(sampled) >= self._room_given and not self._renderer.is_ended(sampled.ids)
        self._turns.append((self._observation, text))
        self._samples[-1] += [_observed(self._new), sampled]
        self._prefix.extend(self._new)
        self._prefix.extend(sampled.ids)
        self._new = np.empty(0, np.int32)
        self.num_turns += 1
        self.is_waiting = False
        return text

    def observe(self, observation: str) -> None:
        self._observation = observation
        delta = self._conversation.observe(observation)
        if delta.starts_over:
            self._samples.append([])
            self._prefix = PrefixHash()
        self._new = delta.ids

    @property
    def room(self) -> int:
        """Maximum tokens to sample in the next turn; below 1 the trajectory is cut short."""
        if self.num_turns >= self.task.max_turns:
            return 0
        left = self.task.max_tokens - self._prefix.num_tokens - len(self._new)
        return min(self.task.max_response_tokens, left)

    def wanted(self, *, resend: bool = False) -> tuple[TurnWanted, Frame]:
        """The request for the next turn; with `resend`, the current request again with all tokens."""
        # The engine that prefills a split turn never saw the last answer, so it does not hold the prefix.
        full = resend or self.task.split or not self._prefix.num_tokens
        parts = [part.ids for part in self._samples[-1]] if full else []
        ids: NDArray[np.int32] = np.concatenate([*parts, self._new])
        prefix = PrefixHash() if full else self._prefix
        self._asked_s = self._asked_s if resend else time.monotonic()
        self.is_waiting = True
        self._room_given = self.room
        message = TurnWanted(
            trajectory=self.play.trajectory,
            issue=self.play.issue,
            turn=self.num_turns,
            prefix_tokens=prefix.num_tokens,
            prefix_hash=prefix.value,
            max_new_tokens=self.room,
            full=full,
        )
        return message, ids.data.cast("B")

    # --- the end ---------------------------------------------------------------------------------

    def ended(self, last: Happened, *, is_kept: bool = False, keeps_tokens: bool = False) -> tuple[Ended, list[Frame]]:
        """`is_kept`: its transcript will be, so it tells more about the play than a reward function may see."""
        record, lengths = self._record()
        transcript: dict[str, Any] = {"task": self.play.task, "turns": self._turns, "outcome": last.outcome or {}}
        if is_kept:
            transcript["facts"] = self._facts(record, lengths if keeps_tokens else [])
        message = Ended(
            trajectory=self.play.trajectory,
            issue=self.play.issue,
            status=last.status,
            detail=clip(last.detail),
            num_turns=self.num_turns,
            num_tokens=len(record),
            sample_lengths=lengths,
            reset_s=self.reset_s,
            env_s=self.env_s,
            is_cut=self.is_cut,
            states=[_state_key(observation) for observation, _ in self._turns],
        )
        return message, [msgspec.msgpack.encode(transcript), *record.to_frames()]

    def _facts(self, record: TokenRecord, lengths: list[int]) -> Facts:
        """With `lengths`, also the tokens."""
        versions = record.versions[record.sampled]
        facts = Facts(
            seed=self.play.seed,
            num_tokens=len(record),
            num_sampled=len(versions),
            first_version=int(versions.min()) if len(versions) else OBSERVED,
            last_version=int(versions.max()) if len(versions) else OBSERVED,
            is_cut=self.is_cut,
            reset_s=self.reset_s,
            env_s=self.env_s,
            policy_s=self.policy_s,
            lengths=lengths,
        )
        if lengths:
            facts.ids, facts.logprobs, facts.versions = map(bytes, record.to_frames())
        return facts

    def _record(self) -> tuple[TokenRecord, list[int]]:
        parts = [part for sample in self._samples for part in sample]
        lengths = [sum(map(len, sample)) for sample in self._samples if sample]
        if not parts:
            return TokenRecord.empty(), []
        joined = TokenRecord(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.logprobs for part in parts]),
            np.concatenate([part.versions for part in parts]),
        )
        return joined, lengths


def _state_key(observation: str) -> int:
    """Equal for equal observations, in any process; 63 bits."""
    return int.from_bytes(blake2b(observation.encode("utf-8", "replace"), digest_size=8).digest(), "big") >> 1


def _observed(ids: NDArray[np.int32]) -> TokenRecord:
    return TokenRecord(ids, np.zeros(len(ids), np.float32), np.full(len(ids), OBSERVED, np.int32))
