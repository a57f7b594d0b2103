"""The reward that the environment computed itself, for environments adapted from another library."""

from __future__ import annotations

from rollart_hpc.rewards.contract import Score, Transcript


def reported(transcript: Transcript) -> Score:
    """The environment's `outcome()` must hold a number `reward` and a truth value `success`.

    It may hold `turn_rewards`, a number for each turn.
    """
    outcome = transcript.outcome
    return Score(float(outcome["reward"]), bool(outcome["success"]), outcome.get("turn_rewards", ()))
