"""Reward of FrozenLake: 1 at the goal, else how much nearer the agent came."""

from __future__ import annotations

from rollart_hpc.rewards.contract import Score, Transcript


def reached_goal(transcript: Transcript, progress_weight: float = 0.5) -> Score:
    if transcript.outcome["reached"]:
        return Score(1.0, True)
    return Score(progress_weight * float(transcript.outcome["progress"]), False)
