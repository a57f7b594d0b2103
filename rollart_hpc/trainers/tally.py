"""The metrics of a step. Owns their names and sums; knows neither model nor optimizer.

Each rank sums over its sampled tokens, in the order of its micro-batches; the ranks' sums are added once.

    ratio_*, clip_fraction    new / behaviour, and the share of tokens whose gradient was clipped to zero
    kl_behaviour              KL from the policy that sampled to the current one
    entropy                   exact if the entropy bonus is used, else estimated by -log p of the sampled tokens
    logprob_gap_*             |trainer - engine| on tokens sampled under the current weights: should be only rounding
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rollart_hpc.trainers.algorithms import TokenTerms, k3_kl
from rollart_hpc.trainers.packing import MicroBatch

if TYPE_CHECKING:
    from rollart_hpc.trainers.world import World

_SUMS = ("loss", "ratio", "clipped", "entropy", "kl_behaviour", "kl_reference", "gap", "gap_tokens")
_MAXIMA = ("ratio", "gap")


class Tally:
    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_samples = 0
        self.rewards: list[float] = []
        self._sums = [0.0] * len(_SUMS)
        self._maxima = [0.0] * len(_MAXIMA)

    def add(self, micro: MicroBatch, terms: TokenTerms, *, version: int, loss: torch.Tensor, new: torch.Tensor) -> None:
        """One transfer from the device per micro-batch."""
        with torch.no_grad():
            is_current = micro.versions == version
            zero = new.new_zeros(())
            gap = torch.where(is_current, (new - micro.behaviour).abs(), zero)
            values = [
                loss,
                terms.policy.ratio.sum(),
                terms.policy.is_clipped.sum(),
                (-new if terms.entropy is None else terms.entropy).sum(),
                k3_kl(micro.behaviour, new).sum(),
                zero if terms.kl is None else terms.kl.sum(),
                gap.sum(),
                is_current.sum(),
                terms.policy.ratio.max(),
                gap.max(),
            ]
            numbers = torch.stack([value.detach().double() for value in values]).tolist()
        count = len(_SUMS)
        self._sums = [a + b for a, b in zip(self._sums, numbers[:count])]
        self._maxima = [max(a, b) for a, b in zip(self._maxima, numbers[count:])]

    def metrics(self, world: World, total: int) -> dict[str, float]:
        sums = dict(zip(_SUMS, world.sum(self._sums)))
        maxima = dict(zip(_MAXIMA, world.max(self._maxima)))
        tokens = max(1, self.num_tokens)
        return {
            "loss": sums["loss"] / total,
            "reward_mean": sum(self.rewards) / max(1, len(self.rewards)),
            "ratio_mean": sums["ratio"] / tokens,
            "ratio_max": maxima["ratio"],
            "clip_fraction": sums["clipped"] / tokens,
            "entropy": sums["entropy"] / tokens,
            "kl_behaviour": sums["kl_behaviour"] / tokens,
            "kl_reference": sums["kl_reference"] / tokens,
            "logprob_gap_mean": sums["gap"] / max(1.0, sums["gap_tokens"]),
            "logprob_gap_max": maxima["gap"],
            "logprob_gap_tokens": sums["gap_tokens"],
            "tokens": float(self.num_tokens),
            "samples": float(self.num_samples),
            "trajectories": float(len(self.rewards)),
        }
