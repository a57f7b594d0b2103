"""The part of a configuration that is right, so that rules between keys can be checked although some keys are wrong.

What follows only from a key that is wrong is not reported: its correction may solve it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from rollart_hpc.config.locations import key_of


def without(tree: Any, wrong: Collection[str], path: str = "") -> Any:
    """A copy of `tree` without the keys at these paths, so that their defaults apply."""
    if not isinstance(tree, dict):
        return tree
    pairs = ((name, value, f"{path}.{name}" if path else str(name)) for name, value in tree.items())
    return {name: without(value, wrong, here) for name, value, here in pairs if here not in wrong}


def of_their_own(conflicts: Iterable[str], problems: Iterable[str]) -> list[str]:
    """Conflicts that don't come from one of the problems: those of another section, and not of a section around it.

    >>> of_their_own(["flow.a: x", "flow: no", "job: b", "name: c"], ["flow.z: unknown key", "nmae: unknown key"])
    ['job: b', 'name: c']
    """
    wrong = [key_of(problem) for problem in problems]
    return [each for each in conflicts if not any(_follows(key_of(each), key) for key in wrong)]


def _follows(key: str, wrong: str) -> bool:
    section, own = wrong.rpartition(".")[0], key.rpartition(".")[0]
    is_sibling = bool(section) and section == own
    return is_sibling or key == wrong or key.startswith(f"{wrong}.") or wrong.startswith(f"{key}.")
