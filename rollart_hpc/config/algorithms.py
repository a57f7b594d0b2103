"""The parts of which an algorithm is made. Owns their declarations and finds them by name; computes nothing.

    part         key of a run                           its function gets, and returns
    estimator    algorithm.estimator                    groups of plays -> an advantage per play, or per token
    loss         algorithm.loss                         tokens -> a loss per token
    correction   algorithm.corrections.NAME             tokens -> a weight per token; 0 masks it
    kl           algorithm.kl_estimator                 log-ratios to the reference -> a penalty per token
    shaping      algorithm.shaping.NAME                 groups of plays -> rewards, or which plays to leave out
    aggregation  algorithm.aggregation                  the size of a sample -> the weight of its tokens

An entry stands beside its function in `trainers/algorithms`, whose modules import no torch: login nodes read them. A
name with a colon is a function of the user's own, as module:function or path/to/file.py:function. It keeps the same
contract; its keyword arguments are its parameters, and attributes of the function replace the fields of an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib import import_module
from typing import Any, TypeVar

from rollart_hpc.config.check import find_problems, nearest
from rollart_hpc.config.objects import resolve
from rollart_hpc.errors import UserError

Function = TypeVar("Function", bound=Callable[..., Any])


class Part(StrEnum):
    ESTIMATOR = "estimator"
    LOSS = "loss"
    CORRECTION = "correction"
    KL = "kl"
    SHAPING = "shaping"
    AGGREGATION = "aggregation"


class Scope(StrEnum):
    """What must be complete before a function can be called."""

    GROUP = "group"
    BATCH = "batch"


class Stage(StrEnum):
    """What a shaping changes."""

    REWARDS = "rewards"
    PLAYS = "plays"  # which of them are trained on
    ADVANTAGES = "advantages"


class Unit(StrEnum):
    """What an aggregation divides a step's sum by the number of."""

    TOKENS = "tokens"
    SAMPLES = "samples"
    TRAJECTORIES = "trajectories"
    GROUPS = "groups"


@dataclass(frozen=True)
class Entry:
    part: Part
    name: str
    function: Callable[..., Any]
    help: str = ""
    paper: str = ""
    params: type | None = None  # dataclass of `config.fields.key` fields; None = the function's keyword arguments
    scope: Scope = Scope.GROUP
    stage: Stage = Stage.REWARDS  # shapings
    unit: Unit = Unit.SAMPLES  # aggregations
    weighs: bool = False  # corrections: importance weights, which a ratio to behaviour log-probs would count twice
    needs_values: bool = False  # estimators: those of a critic, so the run trains one
    is_ready_made: bool = True


_MODULES = {
    Part.ESTIMATOR: "rollart_hpc.trainers.algorithms.estimators",
    Part.LOSS: "rollart_hpc.trainers.algorithms.losses",
    Part.CORRECTION: "rollart_hpc.trainers.algorithms.corrections",
    Part.KL: "rollart_hpc.trainers.algorithms.divergences",
    Part.SHAPING: "rollart_hpc.trainers.algorithms.shaping",
    Part.AGGREGATION: "rollart_hpc.trainers.algorithms.aggregations",
}
_FOUND: dict[Part, dict[str, Entry]] = {part: {} for part in Part}


@dataclass(frozen=True)
class NoParams:
    """Of an entry without parameters."""


def entry(part: Part, name: str, help: str, *, params: type = NoParams, **more: Any) -> Callable[[Function], Function]:
    """Declare the function below as an entry of the registry."""

    def declare(function: Function) -> Function:
        _FOUND[part][name] = Entry(part, name, function, help, params=params, **more)
        return function

    return declare


def entries(part: Part) -> dict[str, Entry]:
    """The ready-made ones by name."""
    import_module(_MODULES[part])
    return _FOUND[part]


def find(part: Part, name: str) -> Entry:
    known = entries(part)
    if name in known:
        return known[name]
    if ":" not in name:
        ways = "or your own as module:function (docs/algorithms.md)"
        raise UserError(f"there is no {part} {name!r}", f"{nearest(name, list(known))}; {ways}")
    function = resolve(name)
    kinds = {"scope": Scope, "stage": Stage, "unit": Unit, "weighs": bool, "needs_values": bool}
    try:
        words = {word: getattr(function, word) for word in kinds if hasattr(function, word)}
        return Entry(part, name, function, is_ready_made=False, **{w: kinds[w](v) for w, v in words.items()})
    except ValueError as error:
        raise UserError(f"{name}: {error}", "docs/algorithms.md lists the attributes and their values") from None


def full_params(found: Entry, given: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of the function: what is given, checked before, over the defaults of the entry."""
    defaults = asdict(found.params()) if found.params is not None else {}
    return defaults | {word: _as(defaults.get(word), value) for word, value in given.items()}


def _as(default: Any, value: Any) -> Any:
    return float(value) if isinstance(default, float) and isinstance(value, int) else value


def find_param_problems(found: Entry, given: Any, where: str) -> Iterator[str]:
    """Parameters that the function does not take, or whose values break a rule."""
    from rollart_hpc.config.callables import find_bad_arguments  # late: it reads the schema, which reads this module

    if found.params is not None:
        yield from find_problems(found.params, given, where)
    else:
        yield from find_bad_arguments(where, found.function, given, "first")
