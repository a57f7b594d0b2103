"""The known engine and trainer kinds. Finds their declarations; does not interpret them.

Built-in kinds are listed here by path. Other packages add kinds as entry points, named after the kind:

    [project.entry-points."rollart_hpc.engines"]
    mine = "my_package.backend:ENGINE"

Listing kinds imports nothing. A declaration is imported when its kind is asked for, and must not import torch.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from rollart_hpc.backends.declaration import Backend, BackendRole
from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.extras import how_to_install

OURS = "rollart-hpc"
GROUPS: dict[BackendRole, str] = {"engine": "rollart_hpc.engines", "trainer": "rollart_hpc.trainers"}
_BUILT_IN: dict[BackendRole, dict[str, str]] = {
    "engine": {
        "torch": "rollart_hpc.engines.torch.backend:BACKEND",
        "vllm": "rollart_hpc.engines.vllm.backend:BACKEND",
    },
    "trainer": {
        "fsdp": "rollart_hpc.trainers.fsdp.backend:BACKEND",
        "megatron": "rollart_hpc.trainers.megatron.backend:BACKEND",
    },
}
_HEAVY = frozenset({"torch", "transformers", "vllm", "megatron", "jax"})


class Source(NamedTuple):
    """The location of a declaration."""

    path: str  # module:object
    origin: str  # the package that provides it


def kinds(role: BackendRole) -> dict[str, str]:
    """Every kind with the package that provides it."""
    return {kind: " and ".join(source.origin for source in found) for kind, found in _sources(role).items()}


def find(role: BackendRole, kind: str) -> Backend:
    found = _found(role, kind)
    if isinstance(found, UserError):
        raise found
    return found


@cache
def _found(role: BackendRole, kind: str) -> Backend | UserError:
    """Cached: a second read would not notice that a bad declaration imports something heavy."""
    try:
        return _find(role, kind)
    except UserError as error:
        return error


def _find(role: BackendRole, kind: str) -> Backend:
    found = _sources(role).get(kind)
    if found is None:
        raise UserError(f"{role}.kind: there is no {role} {kind!r}", f"use one of: {listed(role)}")
    if len(found) > 1:
        origins = " and ".join(source.origin for source in found)
        raise UserError(f"{role}.kind: {kind} is declared by {origins}", "uninstall one of them, or rename its kind")
    return _read(role, kind, found[0])


def listed(role: BackendRole) -> str:
    """All kinds in one line, for error messages."""
    return ", ".join(f"{kind} (from {origin})" for kind, origin in kinds(role).items())


def kinds_that_can(role: BackendRole, capability: str) -> list[str]:
    return [backend.kind for backend in declared(role) if capability in backend.can]


def declared(role: BackendRole) -> list[Backend]:
    """The declarations that can be read."""
    readable = []
    for kind in _sources(role):
        try:
            readable.append(find(role, kind))
        except UserError:
            continue  # `find` raises the error when a run uses this kind
    return readable


def load(backend: Backend, path: str) -> Any:
    """The callable that a path of the declaration names. Imports its module."""
    try:
        return _import(path)
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in backend.modules:
            raise
        what = f"{backend.role}.kind is {backend.kind}, but {name} is not installed"
        raise SiteError(what, how_to_install([backend.extra], [backend.install])) from None


@cache
def _sources(role: BackendRole) -> dict[str, list[Source]]:
    found = {kind: [Source(path, OURS)] for kind, path in _BUILT_IN[role].items()}
    for point in sorted(entry_points(group=GROUPS[role]), key=lambda point: point.name):
        path = f"{point.module}:{point.attr}"
        source = Source(path, f"{point.dist.name} {point.dist.version}" if point.dist else path)
        if source not in found.setdefault(point.name, []):  # a package may be on the path twice
            found[point.name].append(source)
    return found


def _read(role: BackendRole, kind: str, source: Source) -> Backend:
    where = f"{role} {kind} of {source.origin}: {source.path}"
    fix = f"correct or uninstall {source.origin}, or use another {role}.kind: docs/backends.md"
    before = _HEAVY & sys.modules.keys()
    try:
        found = _import(source.path)
    except Exception as error:
        raise UserError(f"{where} can't be imported: {type(error).__name__}: {error}", fix) from error
    heavy = (_HEAVY & sys.modules.keys()) - before
    if heavy:
        raise UserError(f"{where} imports {', '.join(sorted(heavy))}", f"import it in the module of `make`; {fix}")
    if not isinstance(found, Backend):
        raise UserError(f"{where} is {type(found).__name__}, not a Backend", fix)
    if (found.role, found.kind) != (role, kind):
        raise UserError(f"{where} declares {found.role} {found.kind}", fix)
    return found


def _import(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
