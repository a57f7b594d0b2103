"""The metrics of a step. Owns their names and sums; knows neither model nor optimizer.

Each rank sums over its sampled tokens, in the order of its micro-batches; the ranks' sums are added once.

    ratio_*, clip_fraction    new / behaviour, and the share of tokens whose gradient was clipped to zero
    kl_behaviour              KL from the policy that sampled to the current one
    entropy                   exact if the entropy bonus is used, else estimated by -log p of the sampled tokens
    correction_*              of the weights that corrections give: mean, share of tokens with weight 0
    left_out_fraction         share of tokens that shaping leaves out
    trained_tokens, tflop     all tokens of trained samples, and the model's operations for them (`flops`; 0: unknown)
    lagN_*                    the same and more for tokens sampled N versions ago (4: or earlier): their share of all,
                              KL to the policy that sampled them, effective sample size (1 = as good as on-policy) of
                              their uncorrected weights, and the share that corrections mask
    logprob_gap_*             |trainer - engine| on tokens sampled under the current weights: should be only rounding
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rollart_hpc.trainers.algorithms import TokenTerms
from rollart_hpc.trainers.algorithms.divergences import k3
from rollart_hpc.trainers.packing import MicroBatch

if TYPE_CHECKING:
    from rollart_hpc.trainers.world import World

_SUMS = ("loss", "ratio", "clipped", "entropy", "kl_behaviour", "kl_reference", "gap", "gap_tokens")
_MAXIMA = ("ratio", "gap")
_OF_LAG = ("tokens", "weight", "weight_squared", "kl", "masked", "correction")
LAGS = 5  # the last one: that old or older


class Tally:
    def __init__(self) -> None:
        self.num_tokens = 0
        self.num_samples = 0
        self.num_groups = 0
        self.num_left_out = 0  # tokens
        self.num_trained = 0  # tokens of trained samples, observed ones too
        self.operations = 0.0  # of the model, for them
        self.rewards: list[float] = []
        self._sums = [0.0] * len(_SUMS)
        self._maxima = [0.0] * len(_MAXIMA)
        self._lags = [0.0] * (LAGS * len(_OF_LAG))

    def add(self, micro: MicroBatch, terms: TokenTerms, *, version: int, loss: torch.Tensor, new: torch.Tensor) -> None:
        """One transfer from the device per micro-batch."""
        with torch.no_grad():
            is_current = micro.versions == version
            zero = new.new_zeros(())
            gap = torch.where(is_current, (new - micro.behaviour).abs(), zero)
            values = [
                loss,
                terms.ratio.sum(),
                zero if terms.is_clipped is None else terms.is_clipped.sum(),
                (-new if terms.entropy is None else terms.entropy).sum(),
                k3(micro.behaviour - new).sum(),
                zero if terms.kl is None else terms.kl.sum(),
                gap.sum(),
                is_current.sum(),
                terms.ratio.max(),
                gap.max(),
            ]
            lags = _by_lag(micro, terms, version, new)
            numbers = torch.cat([torch.stack([value.detach().double() for value in values]), lags]).tolist()
        count = len(_SUMS)
        self._sums = [a + b for a, b in zip(self._sums, numbers[:count])]
        self._maxima = [max(a, b) for a, b in zip(self._maxima, numbers[count:])]
        self._lags = [a + b for a, b in zip(self._lags, numbers[count + len(_MAXIMA) :])]

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
            "left_out_fraction": self.num_left_out / tokens,
            "trained_tokens": float(self.num_trained),
            "tflop": self.operations / 1e12,
            **_lag_metrics(world.sum(self._lags)),
        }


def _by_lag(micro: MicroBatch, terms: TokenTerms, version: int, new: torch.Tensor) -> torch.Tensor:
    """Sums of `_OF_LAG` for each lag, in one row."""
    lag = (version - micro.versions).clamp(0, LAGS - 1).long()
    one = torch.ones_like(new)
    correction = one if terms.correction is None else terms.correction
    values = (one, terms.ratio, terms.ratio**2, k3(micro.behaviour - new), (correction == 0).to(new.dtype), correction)
    rows = torch.stack([value.detach().double() for value in values], dim=1)
    return rows.new_zeros(LAGS, len(_OF_LAG)).index_add(0, lag, rows).flatten()


def _lag_metrics(sums: list[float]) -> dict[str, float]:
    rows = [dict(zip(_OF_LAG, sums[at : at + len(_OF_LAG)])) for at in range(0, len(sums), len(_OF_LAG))]
    trained = max(1.0, sum(row["tokens"] for row in rows))
    metrics = {
        "correction_mean": sum(row["correction"] for row in rows) / trained,
        "correction_masked": sum(row["masked"] for row in rows) / trained,
        "effective_samples": _effective([sum(row[name] for row in rows) for name in _OF_LAG[:3]]),
    }
    for lag, row in enumerate(rows):
        if row["tokens"]:
            metrics |= {
                f"lag{lag}_tokens": row["tokens"] / trained,
                f"lag{lag}_kl": row["kl"] / row["tokens"],
                f"lag{lag}_masked": row["masked"] / row["tokens"],
                f"lag{lag}_effective_samples": _effective([row[name] for name in _OF_LAG[:3]]),
            }
    return metrics


def _effective(sums: list[float]) -> float:
    """(sum of weights)^2 over (number times sum of their squares): 1 if all are equal."""
    tokens, weight, squared = sums
    return weight**2 / (tokens * squared) if squared else 1.0
