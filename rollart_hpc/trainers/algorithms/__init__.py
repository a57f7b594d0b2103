"""The objective of a step: from rewards to one loss. Knows no model and no rank, and imports no torch.

    plays          a trajectory as estimators and shapings see it       tokens        sampled tokens as losses see them
    shaping        rewards and plays before advantages are computed     losses        a loss per token
    estimators     advantages                                           corrections   weights for data of older policies
    objective      what one run uses of all that                        divergences   KL to the reference
    aggregations   how token losses become the loss of a step

Functions here are pure. Those of plays use numpy in float64, those of tokens only methods of the tensors they get. Each
is declared beside its definition (`config.algorithms`), with its parameters and its paper.
"""

from rollart_hpc.trainers.algorithms.objective import Objective, TokenTerms, assign_advantages, trajectory_rewards
from rollart_hpc.trainers.algorithms.tokens import Tokens, entropy_of

__all__ = ["Objective", "TokenTerms", "Tokens", "assign_advantages", "entropy_of", "trajectory_rewards"]
