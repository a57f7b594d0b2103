"""A recipe under the keys that a run gives. Owns which of them is left of it; knows no recipe by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rollart_hpc.config.check import Tree
from rollart_hpc.config.moved import without_replaced
from rollart_hpc.config.recipes import preset, task_keys

_SECTION = "algorithm"
_MAPS = ("corrections", "shaping")


def with_recipe(tree: Tree, merge: Callable[..., Tree], notes: list[str]) -> Tree:
    """`tree` over the recipe that it names."""
    section = tree.get(_SECTION)
    name = str(section.get("recipe") or "") if isinstance(section, dict) else ""
    keys = preset(name)
    if not keys or not isinstance(section, dict):
        return tree
    said = {_SECTION: {key: value for key, value in section.items() if key != "recipe"}}
    below = without_replaced({_SECTION: keys}, said)
    merged: Tree = merge(below, tree)
    told = [f"{key}={shown(merged[_SECTION][key])}" for key in keys if key in merged[_SECTION]]
    told += [f"tasks.*.{key}={value}" for key, value in task_keys(name).items()]
    notes.append(f"algorithm.recipe: {name} is {', '.join(told)}")
    return merged


def with_task_keys(tree: Tree, tasks: Tree) -> Tree:
    """Tasks with what the recipe gives to each, below what they say themselves."""
    section = tree.get(_SECTION)
    keys = task_keys(str(section.get("recipe") or "")) if isinstance(section, dict) else {}
    return {name: {**keys, **given} if isinstance(given, dict) else given for name, given in tasks.items()}


def without_dropped(tree: Tree) -> Tree:
    """Without the corrections and shapings that are set to false."""
    section = tree.get(_SECTION)
    if not isinstance(section, dict):
        return tree
    kept = {
        key: {name: given for name, given in value.items() if given is not False}
        if key in _MAPS and isinstance(value, dict)
        else value
        for key, value in section.items()
    }
    return {**tree, _SECTION: kept}


def shown(value: Any) -> str:
    """As YAML has it on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {shown(one)}" for key, one in value.items()) + "}"
    return str(value).lower() if isinstance(value, bool) else str(value)
