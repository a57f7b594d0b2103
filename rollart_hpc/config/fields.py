"""Fields of a schema, with what is known of them. Owns their metadata; knows no key.

`config.check` reports every value that breaks it, `config.reference` prints it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from rollart_hpc.backends.declaration import BackendRole


def key(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | Mapping[str, str] | None = None,
    rule: str = "",
    default_text: str = "",
    backend: BackendRole | None = None,
    overrides: type | None = None,
) -> Any:
    """A field with its rule.

    `low` and `high` are inclusive. `choices` may map each choice to its meaning. `rule` says in words what
    `config.rules` or `config.site` checks beyond that, `default_text` where the default comes from if not from here.
    `backend`: the value is the kind of one, or, of a map, its options. `overrides`: the map holds keys of this section.
    """
    metadata = {
        "help": help,
        "low": low,
        "high": high,
        "choices": None if choices is None else tuple(map(str, choices)),
        "meanings": dict(choices) if isinstance(choices, Mapping) else {},
        "rule": rule,
        "default_text": default_text,
        "backend": backend,
        "overrides": overrides,
    }
    if isinstance(default, (dict, list)):
        copied = default
        return field(default_factory=lambda: type(copied)(copied), metadata=metadata)
    return field(default=default, metadata=metadata)


def part(cls: type, help: str) -> Any:
    """A nested section."""
    return field(default_factory=cls, metadata={"help": help})
