"""Reward of FrozenLake: 1 at the goal, otherwise a share for how close the agent came."""

from __future__ import annotations

from rollart_hpc.rewards.contract import Score, Transcript


def reached_goal(transcript: Transcript, progress_weight: float = 0.5, invalid_penalty: float = 0.05) -> Score:
    """Every turn without a valid move is penalised, so that the policy keeps to the four words."""
    outcome = transcript.outcome
    reward = 1.0 if outcome["reached"] else progress_weight * float(outcome["progress"])
    return Score(reward - invalid_penalty * int(outcome["invalid"]), bool(outcome["reached"]))
