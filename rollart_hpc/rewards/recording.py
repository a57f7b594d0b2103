"""Writes the transcript of every scored trajectory that is kept. Owns the way from a transcript to a line."""

from __future__ import annotations

import logging
import time
from typing import Any

import msgspec

from rollart_hpc.config.schema import ObserveConfig
from rollart_hpc.observe.plays import PLAYS, Facts, Play, is_chosen, parsed, samples_of
from rollart_hpc.observe.shards import ShardWriter
from rollart_hpc.rundir import RunDir
from rollart_hpc.types import Frame
from rollart_hpc.wire.messages import Scored, ScoreWanted

log = logging.getLogger(__name__)


class _Recorded(msgspec.Struct):
    """A transcript as env workers send it."""

    turns: list[tuple[str, str]] = []
    outcome: dict[str, Any] = {}
    facts: Facts = msgspec.field(default_factory=Facts)


_decoder = msgspec.msgpack.Decoder(_Recorded)
_encoder = msgspec.json.Encoder()


class Recorder:
    def __init__(self, run: RunDir, observe: ObserveConfig, writer: str, attempt: int) -> None:
        self._share = observe.transcripts
        self._shards = ShardWriter(run.transcripts, PLAYS, writer, attempt=attempt, budget=observe.transcript_bytes)

    @property
    def wait_s(self) -> float | None:
        return self._shards.wait_s

    def scored(self, wanted: ScoreWanted, transcript: Frame, scored: Scored) -> None:
        if not is_chosen(wanted.trajectory, self._share):
            return
        try:
            play = play_of(wanted, transcript, scored)
            line = _encoder.encode(play)
        except (msgspec.MsgspecError, ValueError, TypeError) as error:  # an outcome may hold what JSON can't
            log.warning("can't record %s: %s", wanted.trajectory, error)
            return
        self._shards.add(line, max(play.last_version, play.validation or 0))

    def flush_if_due(self) -> None:
        self._shards.flush_if_due()

    def close(self) -> None:
        self._shards.flush()


def play_of(wanted: ScoreWanted, transcript: Frame, scored: Scored) -> Play:
    recorded = _decoder.decode(transcript)
    facts, name = recorded.facts, parsed(wanted.trajectory)
    messages = [
        {"role": role, "content": text} for turn in recorded.turns for role, text in zip(("user", "assistant"), turn)
    ]
    return Play(
        trajectory=wanted.trajectory,
        task=wanted.task,
        purpose=name.purpose,
        attempt=name.attempt,
        group=name.group,
        member=name.member,
        validation=name.version,
        issue=wanted.issue,
        seed=facts.seed,
        reward=scored.reward,
        success=scored.success,
        stop="limit" if facts.is_cut else "done",
        turns=len(recorded.turns),
        tokens=facts.num_tokens,
        sampled_tokens=facts.num_sampled,
        first_version=facts.first_version,
        last_version=facts.last_version,
        reset_s=round(facts.reset_s, 6),
        env_s=round(facts.env_s, 6),
        policy_s=round(facts.policy_s, 6),
        reward_s=round(scored.seconds, 6),
        scored_at=round(time.time(), 3),
        outcome=recorded.outcome,
        messages=messages,
        turn_rewards=scored.turn_rewards,
        samples=samples_of(facts),
    )
