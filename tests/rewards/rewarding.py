"""Reward functions for tests, good and bad."""

from __future__ import annotations

import ctypes
import signal
import time
from typing import Any

from rollart_hpc.rewards.contract import Score, Transcript


def length(transcript: Transcript, scale: float = 1.0, **params: Any) -> Score:
    deed = transcript.outcome.get("deed", "")
    if deed == "raise":
        raise RuntimeError("told to")
    if deed == "sleep":
        time.sleep(3600)
    if deed == "spin":
        while True:
            pass
    if deed == "stuck":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})
        ctypes.PyDLL(None).sleep(3600)  # holds the interpreter: nothing but the end of the process helps
    if deed == "nan":
        return Score(float("nan"), False)
    if deed == "text":
        return Score("0.5", "no")  # type: ignore[arg-type]
    if deed == "word":
        return Score(0.5, "no")  # type: ignore[arg-type]
    if deed == "none":
        return None  # type: ignore[return-value]
    if deed == "turns":
        return Score(1.0, True, [0.25, 0.75])
    if deed == "a turn too many":
        return Score(1.0, True, [0.0, 0.0, 1.0])
    answers = [answer for _, answer in transcript.turns]
    return Score(scale * sum(map(len, answers)), transcript.task == "good")
