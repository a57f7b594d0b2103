"""From the text in a task file to the class or function it names. Owns the lookup; calls nothing that it finds.

package.module:Class            imported as usual
/path/to/file.py:function       imported from the file, once per process; it may import its neighbours
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from rollart_hpc.config.task_files import import_file
from rollart_hpc.errors import UserError

FORM = "write it as package.module:Name or path/to/file.py:Name"


def resolve(reference: str, base: Path | None = None) -> Any:
    """The class or function that `reference` names; a relative path is taken from `base`."""
    where, colon, name = reference.rpartition(":")
    if not colon or not where or not name.isidentifier():
        raise UserError(f"{reference!r} is not a reference to a class or function", FORM)
    module = _file_module(reference, where, base) if where.endswith(".py") else _module(reference, where)
    try:
        found = getattr(module, name)
    except AttributeError:
        others = ", ".join(sorted(key for key in vars(module) if not key.startswith("_"))[:20])
        raise UserError(f"{reference!r}: {where} has no {name}", f"choose one of: {others}") from None
    if not callable(found):
        raise UserError(f"{reference!r}: {name} is not a class or function", FORM)
    return found


def _module(reference: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name and (where == error.name or where.startswith(error.name + ".")):
            raise UserError(f"{reference!r}: there is no module {where}", f"{FORM}, or install it") from None
        raise _broken(reference, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(reference, error) from error


def _file_module(reference: str, where: str, base: Path | None) -> ModuleType:
    path = ((base or Path()) / where).resolve()
    if not path.is_file():
        raise UserError(f"{reference!r}: there is no file {path}", "correct the path")
    try:
        return import_file(path)
    except (Exception, SystemExit) as error:
        raise _broken(reference, error) from error


def _broken(reference: str, error: BaseException) -> UserError:
    what = f"{reference!r} can't be imported: {type(error).__name__}: {error}"
    return UserError(what, "correct the module, or install what it needs")
