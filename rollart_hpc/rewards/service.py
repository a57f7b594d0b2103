"""Scores transcripts with the tasks' stateless functions, one at a time. Owns the loop of a reward worker.

Any number of workers may run, and any of them may die: an unanswered call goes to another worker. A function that
exceeds its timeout is interrupted. If it can't be interrupted the process exits and is restarted.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

import msgspec

from rollart_hpc.config.objects import resolve
from rollart_hpc.config.schema import TaskConfig
from rollart_hpc.errors import DETAIL_CHARS
from rollart_hpc.observe.trace import Tracer
from rollart_hpc.rewards.contract import Score, Transcript
from rollart_hpc.rewards.recording import Recorder
from rollart_hpc.types import Frame
from rollart_hpc.wire.link import Link
from rollart_hpc.wire.messages import Scored, ScoreFailed, ScoreWanted, Stop

log = logging.getLogger("rollart_hpc.reward")


class Overdue(Exception):
    pass


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise Overdue in the block after `seconds`. If that has no effect, dump stacks and exit after twice that time."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Overdue(f"took longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    faulthandler.dump_traceback_later(2 * seconds, exit=True)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


def checked(score: Score, num_turns: int) -> tuple[float, bool, list[float]]:
    """Reward and success of a score, and rewards of turns if it has them.

    A text is a mistake, even if it looks like a number: "no" would be a success.
    """
    reward: Any = score.reward  # foreign code may return anything
    success: Any = score.success
    if isinstance(reward, str | bytes) or not math.isfinite(reward := float(reward)):
        raise ValueError(f"the reward is {score.reward!r}, expected a finite number")
    if isinstance(success, str | bytes) or success is None:
        raise ValueError(f"success is {success!r}, expected True or False")
    turns = [float(value) for value in getattr(score, "turns", ())]
    if len(turns) not in (0, num_turns) or not all(map(math.isfinite, turns)):
        raise ValueError(f"the rewards of turns are {turns}, expected {num_turns} finite numbers, or none")
    return reward, bool(success), turns


class Scorer:
    """The reward functions of the run, each loaded on first use."""

    def __init__(self, tasks: Mapping[str, TaskConfig], timeout_s: float) -> None:
        self._tasks = tasks
        self._timeout_s = timeout_s
        self._functions: dict[str, Callable[..., Score]] = {}
        self._traced: set[tuple[str, str]] = set()  # (task, exception) whose traceback has been logged

    def answer(self, wanted: ScoreWanted, frames: list[Frame]) -> Scored | ScoreFailed:
        start_s = time.monotonic()
        try:
            with limited(self._timeout_s):
                transcript = msgspec.msgpack.decode(frames[0], type=Transcript)
                score = self._score(wanted.task, transcript)
            reward, success, turns = checked(score, len(transcript.turns))
        except Exception as error:  # foreign code: a failed call is data
            reason = f"{type(error).__name__}: {error}"[:DETAIL_CHARS]
            kind = wanted.task, type(error).__name__
            what = "could not score %s of task %s: %s"
            log.warning(what, wanted.trajectory, wanted.task, reason, exc_info=kind not in self._traced)
            self._traced.add(kind)
            return ScoreFailed(wanted.trajectory, wanted.issue, reason)
        return Scored(wanted.trajectory, wanted.issue, reward, success, time.monotonic() - start_s, turns)

    def _score(self, task: str, transcript: Transcript) -> Score:
        config = self._tasks[task]
        if task not in self._functions:
            self._functions[task] = resolve(config.reward)
        params: dict[str, Any] = dict(config.reward_params)
        return self._functions[task](transcript, **params)


def serve(
    link: Link,
    scorer: Scorer,
    tracer: Tracer,
    recorder: Recorder,
    *,
    idle_s: float = math.inf,
    live_s: float = math.inf,
) -> bool:
    """Serve until stopped (returns False), or until it leaves (True): idle for `idle_s`, or running for `live_s`."""
    moved_s = time.monotonic()
    end_s = moved_s + live_s
    while (left_s := min(moved_s + idle_s, end_s) - time.monotonic()) > 0:
        wait_s = min(left_s, math.inf if recorder.wait_s is None else recorder.wait_s)
        received = link.recv(wait_s if math.isfinite(wait_s) else None)
        recorder.flush_if_due()
        if received is None:
            continue
        message, frames = received
        tracer.set_offset(link.clock_offset_s)
        if isinstance(message, Stop):
            return False
        if isinstance(message, ScoreWanted):
            with tracer.timed("reward", task=message.task, slot=message.trajectory):
                answer = scorer.answer(message, frames)
            link.send(answer)
            if isinstance(answer, Scored):
                recorder.scored(message, frames[0], answer)
                recorder.flush_if_due()
        moved_s = time.monotonic()
    log.info("leaving: no work" if time.monotonic() < end_s else "leaving: lifetime is over")
    return True
