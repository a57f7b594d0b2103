"""Do the environments and rewards of tasks exist, and do they accept the arguments that the tasks give them?

Imports the users' modules and calls nothing in them. Works on the tree as written, so that these problems are reported
together with those of the schema.
"""

from __future__ import annotations

import difflib
import inspect
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import redirect_stdout
from inspect import Parameter
from typing import Any

from rollart_hpc.config.check import Tree
from rollart_hpc.config.objects import resolve
from rollart_hpc.config.schema import ModelConfig
from rollart_hpc.errors import UserError

METHODS = ("reset", "step", "outcome", "close")  # of `envs.contract.Environment`
FORMAT = "legal_answer"  # of `envs.contract.HasFormat`
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def find_code_problems(tree: Tree) -> list[str]:
    """Every task whose environment or reward can't be used. The schema reports what is not a section or not text."""
    tasks, model = (section if isinstance(section, dict) else {} for section in (tree.get("tasks"), tree.get("model")))
    is_tiny = model.get("kind", ModelConfig.kind) == "tiny"
    found: list[str] = []
    with redirect_stdout(sys.stderr):  # what a module prints must not mix with the output of --json
        for name, task in tasks.items():
            if isinstance(task, dict):
                problems = (*_environment(task, is_tiny), *_reward(task))
                found.extend(f"tasks.{name}.{problem}" for problem in problems)
    return found


def _environment(task: Tree, is_tiny: bool) -> Iterator[str]:
    made = yield from _resolve("environment", task)
    if made is None:
        return
    yield from find_bad_arguments("params", made, task.get("params"))
    if not isinstance(made, type):
        return  # a function that makes the environment: only a call shows what it returns
    missing = [method for method in METHODS if not hasattr(made, method)]
    if missing:
        yield (
            f"environment: {made.__name__} is not an environment: it has no {', no '.join(missing)}; "
            "add what is missing (docs/tasks.md shows an example)"
        )
    if is_tiny and not hasattr(made, FORMAT):
        yield f"environment: {lacks_format(made.__name__)}"


def lacks_format(name: str) -> str:
    return (
        f"{name} has no {FORMAT}(rng), from which the tiny base model learns the format of answers; "
        "add it (docs/tasks.md), or use your own model: model.kind=directory model.path=DIR"
    )


def _reward(task: Tree) -> Iterator[str]:
    function = yield from _resolve("reward", task)
    if function is not None:
        yield from find_bad_arguments("reward_params", function, task.get("reward_params"), "transcript")


def _resolve(key: str, task: Tree) -> Generator[str, None, Any]:
    reference = task.get(key, "")
    if not isinstance(reference, str):
        return None
    try:
        return resolve(reference)
    except UserError as error:
        yield f"{key}: {error.what}; {error.fix}"
        return None


def find_bad_arguments(key: str, function: Callable[..., Any], given: Any, *leading: str) -> Iterator[str]:
    """Does `function(*leading, **given)` bind?"""
    given = {} if given is None else given
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # some callables written in C have no signature; only the call will show
    if not isinstance(given, dict):
        return
    parameters = list(signature.parameters.values())
    takes = [p.name for p in parameters[len(leading) :] if p.kind in _NAMED]
    takes_any = any(p.kind is Parameter.VAR_KEYWORD for p in parameters)
    name = getattr(function, "__name__", repr(function))
    unknown = [word for word in given if word not in takes and not takes_any]
    for word in unknown:
        near = difflib.get_close_matches(str(word), takes, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        yield f"{key}.{word}: {name} has no such argument; {hint}legal: {', '.join(takes) or 'none'}"
    try:
        signature.bind(*leading, **{word: value for word, value in given.items() if word not in unknown})
    except TypeError as error:
        yield f"{key}: {name}: {error}; legal: {', '.join(takes) or 'none'}"
