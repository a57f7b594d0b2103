"""Keys of an algorithm that have another place now, or belong to a part that is replaced. Owns the old names.

Old run files and run directories can still be read.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from rollart_hpc.config.check import Tree
from rollart_hpc.config.schema import AlgorithmConfig

_SECTION = "algorithm"
# old key of the section: map that has it now, and its old default
_MOVED: dict[str, tuple[str, Any]] = {
    "normalise_std": ("estimator_params", True),
    "clip_low": ("loss_params", 0.2),
    "clip_high": ("loss_params", 0.2),
}


def moved(tree: Tree, *, is_resolved: bool = False) -> Tree:
    """The tree with new places. In a resolved file every key was written, so defaults say nothing and are left out."""
    section = tree.get(_SECTION)
    if not isinstance(section, dict) or not any(old in section for old in _MOVED):
        return tree
    kept = {key: value for key, value in section.items() if key not in _MOVED}
    for old, (place, default) in _MOVED.items():
        if old in section and not (is_resolved and section[old] == default):
            params = kept.get(place)
            kept[place] = {old: section[old], **(params if isinstance(params, dict) else {})}
    return {**tree, _SECTION: kept}


def without_replaced(below: Tree, above: Tree) -> Tree:
    """`below` without the parameters of an estimator, loss or aggregation that `above` replaces by another.

    If `above` names a recipe, the whole section is replaced.
    """
    section, new = below.get(_SECTION), above.get(_SECTION)
    if not isinstance(section, dict) or not isinstance(new, dict):
        return below
    if new.get("recipe"):
        return {key: value for key, value in below.items() if key != _SECTION}
    names = {f.name: f.default for f in fields(AlgorithmConfig) if f"{f.name}_params" in section}
    old = {name: section.get(name, default) for name, default in names.items()}
    gone = {f"{name}_params" for name in old if new.get(name, old[name]) != old[name]}
    return {**below, _SECTION: {key: value for key, value in section.items() if key not in gone}} if gone else below
