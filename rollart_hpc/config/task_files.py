"""Imports a user's Python file by its path, so that it can import its neighbours. Owns the names of such modules.

The directory of the file becomes a package with a private name, and the file and its neighbours become modules of that
package. In these modules `import helper` first looks for helper.py (or a package helper/) beside the file. So tasks in
two directories may each have a helper.py, and neither sees the other's. The standard library and rollart_hpc are never
replaced by a neighbour. Python's own import does the rest, with its locks: threads that need a module wait until it has
run.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import xxhash

_PREFIX = "rollart_tasks_"
_NOT_REPLACED = sys.stdlib_module_names | {"rollart_hpc"}

_files: dict[str, Path] = {}  # module -> file, for files that a task names; their names need not be identifiers


def import_file(path: Path) -> ModuleType:
    """The module of a file, imported once per process. Raises what the file raises."""
    package = _package(path.parent)
    name = f"{package}.{path.stem.replace('.', '_')}"
    _files.setdefault(name, path)
    return importlib.import_module(name)


def _package(directory: Path) -> str:
    name = f"{_PREFIX}{xxhash.xxh3_64_hexdigest(str(directory).encode())}"
    if name not in sys.modules:
        package = ModuleType(name)
        package.__path__ = [str(directory)]
        sys.modules.setdefault(name, package)
    return name


class _Finder(MetaPathFinder):
    """Finds modules of our packages, as Python would, and lets them import their neighbours."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(_PREFIX):
            return None
        file = _files.get(fullname)
        if file is not None:
            return importlib.util.spec_from_file_location(fullname, file, loader=_Loader(fullname, str(file)))
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        """The import statement calls the `__import__` among the module's built-ins."""
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import_for(module.__name__.partition(".")[0])}
        super().exec_module(module)


def _import_for(package: str) -> Any:
    directory = Path(sys.modules[package].__path__[0])

    def import_(
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level or top in _NOT_REPLACED or not _is_neighbour(package, directory, top):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        whole = f"{package}.{name}"
        if fromlist:
            return builtins.__import__(whole, globals, locals, fromlist, 0)
        importlib.import_module(whole)
        return sys.modules[f"{package}.{top}"]

    return import_


def _is_neighbour(package: str, directory: Path, top: str) -> bool:
    known = f"{package}.{top}" in sys.modules  # no file is looked up for a module that is there
    return known or (directory / f"{top}.py").is_file() or (directory / top / "__init__.py").is_file()


sys.meta_path.insert(0, _Finder())
