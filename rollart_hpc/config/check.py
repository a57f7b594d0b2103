"""Does a tree of plain values fit a schema? Finds every problem at once; reads no file and changes nothing.

A problem is one line: key path, value, rule, and the nearest legal key or value.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from rollart_hpc.backends.registry import kinds, listed
from rollart_hpc.config.key_names import key_of

Tree = dict[str, Any]

_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


def find_problems(schema: type, tree: Any, path: str = "") -> list[str]:
    """Every place where `tree` breaks a rule of the dataclass `schema`."""
    return list(_check_section(schema, schema, tree, path))


def _check_section(root: type, schema: type, tree: Any, path: str) -> Iterator[str]:
    if tree is None:  # `model:` with nothing below it
        return
    if not isinstance(tree, dict):
        yield f"{path or 'file'}: {_show(tree)} is not a section; expected keys such as {_listed(_names(schema)[:3])}"
        return
    known = {key_of(f.name): f for f in fields(schema)}
    hints = {key_of(name): kind for name, kind in get_type_hints(schema).items()}
    for name, value in tree.items():
        where = _join(path, name)
        if name in known:
            yield from _check_value(root, hints[name], known[name], value, where)
        else:
            yield f"{where}: unknown key (value {_show(value)}); {_nearest_key(root, schema, str(name), path)}"


def _check_value(root: type, kind: Any, rule: Field[Any], value: Any, where: str) -> Iterator[str]:
    if is_dataclass(kind):
        yield from _check_section(root, kind, value, where)  # type: ignore[arg-type]
    elif rule.metadata.get("overrides"):
        yield from _check_section(root, rule.metadata["overrides"], value, where)
    elif get_origin(kind) is dict:
        yield from _check_mapping(root, get_args(kind)[1], rule, value, where)
    elif get_origin(kind) is list:
        if not isinstance(value, str) and not _is_texts(value):
            yield f"{where}: {_show(value)} is neither text nor a list of texts ({gist(rule)})"
    elif not _has_type(kind, value):
        yield f"{where}: {_show(value)} is {_kind(value)}, expected {_WORDS[kind]} ({gist(rule)})"
    else:
        yield from _check_limits(rule, value, where)


def _check_mapping(root: type, kind: Any, rule: Field[Any], value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where}: {_show(value)} is {_kind(value)}, expected a section ({gist(rule)})"
        return
    names = rule.metadata.get("names")
    for name, item in value.items():
        if not isinstance(name, str):
            yield f"{where}: the key {_show(name)} is {_kind(name)}, expected text; put it in quotes"
        elif names and name not in names:
            yield f"{_join(where, name)}: unknown name; {nearest(name, list(names))}"
        elif is_dataclass(kind):
            yield from _check_section(root, kind, item, _join(where, name))  # type: ignore[arg-type]
        elif kind in _WORDS and not _has_type(kind, item):
            expected = f"expected {_WORDS[kind]} ({gist(rule)})"
            yield f"{_join(where, name)}: {_show(item)} is {_kind(item)}, {expected}"


def _check_limits(rule: Field[Any], value: Any, where: str) -> Iterator[str]:
    low, high, choices, backend = (rule.metadata.get(k) for k in ("low", "high", "choices", "backend"))
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{where}: {value} is not a finite number; write an ordinary one"
    elif low is not None and value < low:
        yield f"{where}: {_show(value)} is too small, must be at least {low:g} ({gist(rule)})"
    elif high is not None and value > high:
        yield f"{where}: {_show(value)} is too large, must be at most {high:g} ({gist(rule)})"
    elif choices is not None and value not in choices:
        yield f"{where}: {_show(value)} is not a choice; {nearest(value, list(choices))}"
    elif backend is not None and value not in kinds(backend):
        yield f"{where}: there is no {backend} {_show(value)}; {nearest(value, list(kinds(backend)), listed(backend))}"


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _has_type(kind: Any, value: Any) -> bool:
    """Strict: true is not 1, "3" is not 3; but 1 is a fine 1.0."""
    if kind is float:
        return type(value) in (int, float)
    return type(value) is kind


# --- words -------------------------------------------------------------------------------------


def gist(rule: Field[Any]) -> str:
    """What a key is: the help text up to its first semicolon."""
    return str(rule.metadata["help"]).split(";", 1)[0]


def _nearest_key(root: type, schema: type, name: str, path: str) -> str:
    """The most similar sibling, else a key of the same name elsewhere, else all siblings."""
    siblings = _names(schema)
    near = difflib.get_close_matches(name, siblings, n=1)
    if near:
        return f"did you mean {_join(path, near[0])}?"
    elsewhere = [p for p in _leaf_paths(root) if p.rsplit(".", 1)[-1] == name]
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    return f"legal keys here: {_listed(siblings)}"


def nearest(value: str, legal: list[str], as_text: str = "") -> str:
    """did you mean fast? legal: fast, wide"""
    near = difflib.get_close_matches(value, legal, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{hint}legal: {as_text or _listed(legal)}"


def _leaf_paths(schema: type, path: str = "") -> Iterator[str]:
    for field, kind in get_type_hints(schema).items():
        inner = get_args(kind)[1] if get_origin(kind) is dict else kind
        name = key_of(field)
        here = _join(path, f"{name}.NAME" if inner is not kind else name)
        if is_dataclass(inner):
            yield from _leaf_paths(inner, here)  # type: ignore[arg-type]
        else:
            yield here


def _names(schema: type) -> list[str]:
    return [key_of(f.name) for f in fields(schema)]


def _join(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _listed(names: list[str]) -> str:
    return ", ".join(name or '""' for name in names)


def _show(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _kind(value: Any) -> str:
    names = {
        bool: "true or false",
        int: "an integer",
        float: "a number",
        str: "text",
        dict: "a section",
        list: "a list",
    }
    return "empty" if value is None else names.get(type(value), type(value).__name__)
