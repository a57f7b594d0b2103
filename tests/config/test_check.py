from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart_hpc.config.check import find_problems
from rollart_hpc.config.key_names import as_keys
from rollart_hpc.config.schema import RunConfig, TaskConfig


def problem(tree: Any) -> str:
    found = find_problems(RunConfig, tree)
    assert len(found) == 1, found
    return found[0]


def test_the_defaults_are_legal() -> None:
    assert find_problems(RunConfig, as_keys(RunConfig, asdict(RunConfig(tasks={"a": TaskConfig()})))) == []


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ({"flow": {"alhpa": 2}}, "flow.alhpa: unknown key (value 2); did you mean flow.alpha?"),
        ({"alpha": 2}, "alpha: unknown key (value 2); did you mean flow.alpha?"),
        ({"tasks": {"t": {"wieght": 1}}}, "tasks.t.wieght: unknown key (value 1); did you mean tasks.t.weight?"),
        ({"steps": "ten"}, "steps: 'ten' is text, expected an integer (optimizer steps)"),
        ({"steps": True}, "steps: true is true or false, expected an integer (optimizer steps)"),
        ({"steps": 2.0}, "steps: 2.0 is a number, expected an integer (optimizer steps)"),
        ({"steps": None}, "steps: null is empty, expected an integer (optimizer steps)"),
        ({"steps": -1}, "steps: -1 is too small, must be at least 0 (optimizer steps)"),
        ({"deterministic": 1}, "deterministic: 1 is an integer, expected true or false"),
        ({"flow": {"temperature": float("nan")}}, "flow.temperature: nan is not a finite number"),
        ({"mode": "rolart"}, "mode: 'rolart' is not a choice; did you mean rollart? legal: sync, sync_plus, one_off"),
        ({"flow": 3}, "flow: 3 is not a section; expected keys such as alpha"),
        ({"tasks": ["lake"]}, "tasks: ['lake'] is a list, expected a section"),
        ({"pools": {"fast": {"clas": "h20"}}}, "(value 'h20'); did you mean pools.fast.class?"),
        ({"pools": {"fast": {"class": ["h20", 3]}}}, "pools.fast.class: ['h20', 3] is neither text nor a list"),
        ({"pools": {"fast": {"engine": {"dtyp": "x"}}}}, "did you mean pools.fast.engine.dtype?"),
        ({"pools": {"fast": {"engine": {"dtype": "int3"}}}}, "pools.fast.engine.dtype: 'int3' is not a choice"),
        ({"pools": {"fast": {"engine": {"kind": "vllm"}}}}, "pools.fast.engine.kind: unknown key (value 'vllm')"),
        ({"trainer": {"class_": "h20"}}, "did you mean trainer.class?"),
        ({"tasks": {"t": {"trouble": {"turn_latency": {"mean": 1}}}}}, "mean tasks.t.trouble.turn_latency.mean_s?"),
        ({"colour": 1}, "colour: unknown key (value 1); legal keys here: name, seed, steps"),
    ],
)  # fmt: skip
def test_a_problem_names_key_value_and_rule(tree: Any, expected: str) -> None:
    assert expected in problem(tree)


def test_an_integer_is_a_fine_float_and_an_empty_section_means_defaults() -> None:
    assert find_problems(RunConfig, {"trainer": {"lr": 1}, "model": None}) == []


def test_every_problem_is_reported_at_once() -> None:
    tree = {"steps": -1, "mode": "x", "flow": {"a": 1, "alpha": "b"}, "tasks": {"t": {"weight": -1, "nope": 0}}}
    assert len(find_problems(RunConfig, tree)) == 6


PATHS = [("flow", "alpha"), ("trainer", "lr"), ("engine", "threads"), ("timeouts", "idle_s"), ("model", "path")]


@given(st.sampled_from(PATHS), st.text(min_size=1, max_size=12))
def test_any_unknown_key_is_found(path: tuple[str, str], name: str) -> None:
    section = as_keys(RunConfig, asdict(RunConfig()))[path[0]]
    found = find_problems(RunConfig, {path[0]: {name: 1}})
    assert bool(found) == (name not in section or not isinstance(section[name], int | float))


LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_subnormal=False) | st.text()
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(TREES)
def test_no_tree_makes_it_fail(tree: Any) -> None:
    assert all(isinstance(line, str) and line for line in find_problems(RunConfig, tree))
    assert all(isinstance(line, str) for line in find_problems(RunConfig, {"flow": tree, "tasks": tree, "seed": tree}))
