"""Reward of FrozenLake: 1 at the goal, else how much nearer the agent came to it."""

from __future__ import annotations

from rollart_hpc.rewards.contract import Score, Transcript


def reached_goal(transcript: Transcript, progress_weight: float = 0.5, invalid_penalty: float = 0.05) -> Score:
    """A turn without a move costs, so that the policy keeps to the words it knows."""
    outcome = transcript.outcome
    reward = 1.0 if outcome["reached"] else progress_weight * float(outcome["progress"])
    return Score(reward - invalid_penalty * int(outcome["invalid"]), bool(outcome["reached"]))
