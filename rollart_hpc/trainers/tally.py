"""The metrics of a step. Owns their names and sums; knows neither model nor optimizer.

Each rank sums over its sampled tokens, in the order of its micro-batches; the ranks' sums are added once. With several
updates per step, everything is a mean over them; what compares with the policy that sampled uses the weights before the
first update.

    ratio_*, clip_fraction    current / behaviour, and the share of tokens whose gradient was clipped to zero
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
    from rollart_hpc.trainers.batches import Counts
    from rollart_hpc.trainers.world import World

_SUMS = ("ratio", "clipped", "entropy", "kl_behaviour", "kl_reference", "gap", "gap_tokens")
_MAXIMA = ("ratio", "gap")
_OF_LAG = ("tokens", "weight", "weight_squared", "kl", "masked", "correction")
LAGS = 5  # the last one: that old or older


class Tally:
    def __init__(self) -> None:
        self._loss = 0.0  # summed over this rank's tokens of the present update
        self._losses: list[float] = []  # of the updates before
        self._sums = [0.0] * len(_SUMS)
        self._maxima = [0.0] * len(_MAXIMA)
        self._lags = [0.0] * (LAGS * len(_OF_LAG))

    def add(self, micro: MicroBatch, terms: TokenTerms, *, version: int, loss: torch.Tensor, new: torch.Tensor) -> None:
        """One transfer from the device per micro-batch."""
        with torch.no_grad():
            is_current = micro.versions == version
            zero = new.new_zeros(())
            gap = torch.where(is_current, (terms.proximal - micro.behaviour).abs(), zero)
            values = [
                terms.ratio.sum(),
                zero if terms.is_clipped is None else terms.is_clipped.sum(),
                (-new if terms.entropy is None else terms.entropy).sum(),
                k3(micro.behaviour - terms.proximal).sum(),
                zero if terms.kl is None else terms.kl.sum(),
                gap.sum(),
                is_current.sum(),
                terms.ratio.max(),
                gap.max(),
            ]
            lags = _by_lag(micro, terms, version)
            numbers = torch.cat([torch.stack([value.detach().double() for value in (loss, *values)]), lags]).tolist()
        self._loss += numbers.pop(0)
        count = len(_SUMS)
        self._sums = [a + b for a, b in zip(self._sums, numbers[:count])]
        self._maxima = [max(a, b) for a, b in zip(self._maxima, numbers[count:])]
        self._lags = [a + b for a, b in zip(self._lags, numbers[count + len(_MAXIMA) :])]

    def close(self, world: World, total: int) -> float:
        """The loss of the update that ends here."""
        (loss,) = world.sum([self._loss])
        self._losses.append(loss / total)
        self._loss = 0.0
        return self._losses[-1]

    def metrics(self, world: World, counts: Counts, epochs: int = 1) -> dict[str, float]:
        """Means over all updates. `counts`: of all samples, each of which was trained `epochs` times."""
        sums = dict(zip(_SUMS, world.sum(self._sums)))
        maxima = dict(zip(_MAXIMA, world.max(self._maxima)))
        tokens = max(1, counts.tokens * epochs)
        return {
            "loss": sum(self._losses) / max(1, len(self._losses)),
            "reward_mean": sum(counts.rewards) / max(1, len(counts.rewards)),
            "ratio_mean": sums["ratio"] / tokens,
            "ratio_max": maxima["ratio"],
            "clip_fraction": sums["clipped"] / tokens,
            "entropy": sums["entropy"] / tokens,
            "kl_behaviour": sums["kl_behaviour"] / tokens,
            "kl_reference": sums["kl_reference"] / tokens,
            "logprob_gap_mean": sums["gap"] / max(1.0, sums["gap_tokens"]),
            "logprob_gap_max": maxima["gap"],
            "logprob_gap_tokens": sums["gap_tokens"] / epochs,
            "tokens": float(counts.tokens),
            "samples": float(counts.samples),
            "trajectories": float(len(counts.rewards)),
            "left_out_fraction": counts.left_out / max(1, counts.tokens),
            "trained_tokens": float(counts.trained),
            "tflop": counts.operations / 1e12,
            **_lag_metrics(world.sum(self._lags)),
        }


def _by_lag(micro: MicroBatch, terms: TokenTerms, version: int) -> torch.Tensor:
    """Sums of `_OF_LAG` for each lag, in one row."""
    lag = (version - micro.versions).clamp(0, LAGS - 1).long()
    one = torch.ones_like(terms.ratio)
    correction = one if terms.correction is None else terms.correction
    values = (
        one,
        terms.ratio,
        terms.ratio**2,
        k3(micro.behaviour - terms.proximal),
        (correction == 0).to(one.dtype),
        correction,
    )
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
