"""Every key that a file may hold, as data. Owns the walk over the schemas; prints nothing.

run file    flow.alpha, trainer.lora.rank, ...
task file   tasks.NAME.weight: `weight` in the task file, `tasks.NAME.weight` in a run file, which overrides it
site file   classes.NAME.partition, ...
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING, Field, asdict, dataclass, field, fields, is_dataclass
from enum import StrEnum
from functools import cache
from inspect import get_annotations
from typing import Any, get_args, get_origin, get_type_hints

from rollart_hpc.backends.declaration import BackendRole
from rollart_hpc.backends.registry import declared
from rollart_hpc.config.key_names import key_of
from rollart_hpc.config.schema import RunConfig, TaskConfig
from rollart_hpc.config.site import SiteConfig

NAME = "NAME"  # in a path: a name of the user's choice
TASK_ROOT = f"tasks.{NAME}"
_KNOWN = ("low", "high", "choices", "meanings", "rule", "default_text")
_TYPES = {bool: "true or false", int: "integer", float: "number", str: "text"}


class File(StrEnum):
    RUN = "run"
    TASK = "task"
    SITE = "site"


@dataclass(frozen=True)
class Key:
    path: str
    file: File
    type: str
    default: Any
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] | None = None
    meanings: dict[str, str] = field(default_factory=dict)  # of choices
    rule: str = ""  # in words, beyond type, range and choices
    default_text: str = ""  # if the default is not the schema's
    names: tuple[str, ...] = ()  # that may stand for NAME in `path`; () = any

    @property
    def section(self) -> str:
        return self.path.rpartition(".")[0]

    @property
    def gist(self) -> str:
        """What the key is, without effects and extreme values."""
        return self.help.split(";", 1)[0]

    @property
    def is_map(self) -> bool:
        return self.type.startswith("map")

    @property
    def legal(self) -> str:
        """Type and legal values in words."""
        if self.choices:
            return "one of " + ", ".join(choice or '""' for choice in self.choices)
        if self.low is not None and self.high is not None:
            return f"{self.type}, {self.low:g} to {self.high:g}"
        return self.type if self.low is None else f"{self.type}, at least {self.low:g}"

    @property
    def shown_default(self) -> str:
        """As a YAML file has it, or in words."""
        if self.default_text:
            return f"({self.default_text})"
        if isinstance(self.default, float):
            return f"{self.default:g}"
        return self.default or '""' if isinstance(self.default, str) else json.dumps(self.default)

    def as_dict(self) -> dict[str, Any]:
        """For scripts. `files` are those that may hold the key."""
        files = [File.TASK, File.RUN] if self.file is File.TASK else [self.file]
        rest = {name: value for name, value in asdict(self).items() if name not in ("path", "file", "names")}
        return {"key": self.path, "files": files, **rest}


@dataclass(frozen=True)
class Section:
    """A part of a file. `path` is empty for keys at the top of it."""

    path: str
    file: File
    help: str
    text: str  # the schema's docstring
    keys: tuple[Key, ...]
    names: tuple[str, ...] = ()  # that may stand for NAME at the end of `path`


# `config.load` takes these out before the schema sees the file.
_BASE = "another file, by name or path, that this one builds on; write only what differs"
_FILE = "task file, by name or path, in a run file only; empty = the packaged task NAME, or the path in place of NAME"
_READ_FIRST = {
    (File.RUN, ""): Key("base", File.RUN, "text", "", _BASE),
    (File.TASK, TASK_ROOT): Key(f"{TASK_ROOT}.file", File.RUN, "text", "", _FILE),
    (File.SITE, ""): Key("base", File.SITE, "text", "", _BASE),
}


@cache
def sections() -> tuple[Section, ...]:
    """All of them, in the order of the files."""
    (tasks,) = (rule for rule in fields(RunConfig) if rule.name == "tasks")
    return (
        *_walk(RunConfig, File.RUN, "", "keys at the top of a run file"),
        *_walk(TaskConfig, File.TASK, TASK_ROOT, str(tasks.metadata["help"])),
        *_walk(SiteConfig, File.SITE, "", "keys at the top of a site file"),
    )


def all_keys() -> Iterator[Key]:
    for section in sections():
        yield from section.keys


def keys_of(schema: type) -> tuple[Key, ...]:
    """The keys of a section that stands nowhere in a file by itself."""
    return next(_walk(schema, File.RUN, "", "")).keys[1:]


def _walk(schema: type, file: File, path: str, help: str, names: tuple[str, ...] = ()) -> Iterator[Section]:
    hints = get_type_hints(schema)
    keys = [_READ_FIRST[file, path]] if (file, path) in _READ_FIRST else []
    below: list[Iterator[Section]] = []
    for rule in _own_first(schema):
        kind, here = hints[rule.name], _join(path, key_of(rule.name))
        inner = get_args(kind)[1] if get_origin(kind) is dict else None
        told = str(rule.metadata["help"])
        if is_dataclass(kind):
            below.append(_walk(_as_type(kind), file, here, told, names))
        elif inner is TaskConfig:
            continue  # the keys of a task file
        elif is_dataclass(inner):
            legal = tuple(rule.metadata.get("names", ()))
            below.append(_walk(_as_type(inner), file, _join(here, NAME), told, legal))
        else:
            keys.append(_key(here, file, kind, rule, names))
            if inner is not None:
                below.extend(_options(rule.metadata.get("backend"), file, here))
    yield Section(path, file, help, _docstring(schema), tuple(keys), names if path.endswith(NAME) else ())
    for part in below:
        yield from part


def _options(role: BackendRole | None, file: File, path: str) -> Iterator[Iterator[Section]]:
    """A section for every kind that declares its options."""
    for backend in declared(role) if role else ():
        if backend.options is not None:
            yield _walk(backend.options, file, path, f"with {role}.kind: {backend.kind}")


def _own_first(schema: type) -> list[Field[Any]]:
    """A class's own fields come before those it inherits."""
    own = get_annotations(schema)
    return sorted(fields(schema), key=lambda rule: rule.name not in own)


def _key(path: str, file: File, kind: Any, rule: Any, names: tuple[str, ...]) -> Key:
    default = rule.default if rule.default is not MISSING else rule.default_factory()
    known = {name: rule.metadata[name] for name in _KNOWN if name in rule.metadata}
    role = rule.metadata.get("backend")
    if role and kind is str:
        meanings = {backend.kind: backend.summary for backend in declared(role)}
        known |= {"choices": tuple(meanings), "meanings": meanings}
    return Key(path, file, _type(kind, rule), default, rule.metadata["help"], names=names, **known)


def _type(kind: Any, rule: Any) -> str:
    if get_origin(kind) is list:
        return "text, or list of texts"
    if get_origin(kind) is not dict:
        return _TYPES[kind]
    names = rule.metadata.get("names")
    return f"map with keys {', '.join(names)}" if names else "map"


def _docstring(schema: type) -> str:
    text = schema.__doc__ or ""
    return "" if text.startswith(f"{schema.__name__}(") else text  # dataclasses make one up


def _as_type(kind: Any) -> type:
    assert isinstance(kind, type)
    return kind


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
