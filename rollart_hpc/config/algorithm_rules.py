"""Do the parts of a run's algorithm exist, take their parameters and fit together? Owns those rules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from rollart_hpc.config.algorithms import Entry, Part, Scope, find, find_param_problems
from rollart_hpc.config.schema import AlgorithmConfig
from rollart_hpc.errors import UserError


class Use(NamedTuple):
    """A part that a run names."""

    part: Part
    name: str
    key: str  # that names it
    params: Any
    where: str  # key of its parameters


def uses(algorithm: AlgorithmConfig) -> Iterator[Use]:
    """Every part that the run names."""
    for part in (Part.ESTIMATOR, Part.LOSS, Part.AGGREGATION):
        key = f"algorithm.{part}"
        yield Use(part, getattr(algorithm, part), key, getattr(algorithm, f"{part}_params"), f"{key}_params")
    yield Use(Part.KL, algorithm.kl_estimator, "algorithm.kl_estimator", {}, "algorithm.kl_estimator")
    several = ((Part.CORRECTION, "corrections", algorithm.corrections), (Part.SHAPING, "shaping", algorithm.shaping))
    for part, section, named in several:
        for name, params in named.items():
            where = f"algorithm.{section}.{name}"
            yield Use(part, name, where, {} if params is None else params, where)


def find_algorithm_conflicts(algorithm: AlgorithmConfig) -> Iterator[str]:
    """Every reason why this algorithm can't be computed."""
    found: list[tuple[Use, Entry]] = []
    for use in uses(algorithm):
        try:
            found.append((use, find(use.part, use.name)))
        except UserError as error:
            yield f"{use.key}: {error.what}; {error.fix}"
            continue
        if not isinstance(use.params, dict):
            yield f"{use.where}: {use.params!r} is not a section; write its parameters, e.g. {{high: 2}}, or {{}}"
        else:
            yield from find_param_problems(found[-1][1], use.params, use.where)
    yield from _combined(algorithm, found)


def _combined(algorithm: AlgorithmConfig, found: list[tuple[Use, Entry]]) -> Iterator[str]:
    for use, entry in found:
        if entry.weighs and not algorithm.decoupled:
            yield (
                f"{use.key}: weighs tokens by their probability over that at sampling, which the loss does already; "
                "set algorithm.decoupled=true, or use a mask"
            )
    if algorithm.kl and algorithm.kl_estimator == "k1" and algorithm.kl_in == "loss":
        yield (
            "algorithm.kl_estimator: k1 in the loss has no gradient on average; set algorithm.kl_in=reward, or "
            "algorithm.kl_estimator to k2 or k3"
        )


def needs_critic(algorithm: AlgorithmConfig) -> bool:
    return find(Part.ESTIMATOR, algorithm.estimator).needs_values


def batch_scoped(algorithm: AlgorithmConfig) -> list[str]:
    """The keys that name a part which needs the whole batch."""
    entries = [(use.key, find(use.part, use.name)) for use in uses(algorithm)]
    found = [key for key, entry in entries if entry.scope is Scope.BATCH or entry.needs_values]
    return found + [f"algorithm.{name}" for name in ("updates", "epochs") if getattr(algorithm, name) > 1]
