"""Keys as files have them, and fields as Python has them. Owns the difference; knows no key.

A key that is a word of Python has a field with an underscore at its end: `class` is `class_`. A list of texts may be
written as one text. Only sections of the schema are renamed: the keys of free maps belong to the user.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints


def key_of(field: str) -> str:
    return field.removesuffix("_")


def as_fields(schema: type, tree: Any) -> Any:
    """A checked tree of a file, as the schema's dataclasses take it. Unknown keys are kept."""
    names = {key_of(f.name): f.name for f in fields(schema)}
    return _renamed(schema, tree, lambda key: names.get(key, key), as_fields)


def as_keys(schema: type, tree: Any) -> Any:
    """Plain values of a dataclass, as a file has them."""
    return _renamed(schema, tree, key_of, as_keys)


def _renamed(schema: type, tree: Any, name: Callable[[str], str], walk: Callable[[type, Any], Any]) -> Any:
    if not isinstance(tree, dict):
        return tree
    hints = get_type_hints(schema)
    by_key = {key_of(field): kind for field, kind in hints.items()}
    known = hints | by_key
    return {(name(key) if key in known else key): _value(known.get(key), value, walk) for key, value in tree.items()}


def _value(kind: Any, value: Any, walk: Callable[[type, Any], Any]) -> Any:
    if is_dataclass(kind):
        return walk(kind, value)  # type: ignore[arg-type]
    if get_origin(kind) is list and isinstance(value, str):
        return [value]
    inner = get_args(kind)[1] if get_origin(kind) is dict else None
    if is_dataclass(inner) and isinstance(value, dict):
        return {name: walk(inner, item) for name, item in value.items()}  # type: ignore[arg-type]
    return value
