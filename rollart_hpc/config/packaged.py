"""Where run, task and site files are found: packaged ones by name, the user's by path.

A user's site files may also lie in ~/.config/rollart-hpc/sites (or below XDG_CONFIG_HOME), where they are found by name
before packaged ones.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Literal

from rollart_hpc.errors import SiteError, UserError

Kind = Literal["runs", "tasks", "sites"]
_PACKAGE = Path(__file__).resolve().parent.parent
_PLACES = (_PACKAGE / "configs", _PACKAGE.parent / "configs")  # installed, checkout


def directory(kind: Kind) -> Path:
    for place in _PLACES:
        if (place / kind).is_dir():
            return place / kind
    raise SiteError(f"configs/{kind} is missing from the installation", "reinstall rollart-hpc")


def user_directory(kind: Kind) -> Path:
    """Where the user keeps files of that kind; it may not exist."""
    config_home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config_home) / "rollart-hpc" / kind


def names(kind: Kind) -> list[str]:
    return sorted({path.stem for place in _places(kind) for path in place.glob("*.yaml")})


def user_names(kind: Kind) -> list[str]:
    return sorted(path.stem for path in user_directory(kind).glob("*.yaml"))


def _places(kind: Kind) -> list[Path]:
    return [user_directory(kind), directory(kind)] if kind == "sites" else [directory(kind)]


def looks_like_path(name: str) -> bool:
    return "/" in name or name.endswith((".yaml", ".yml"))


def find(kind: Kind, name: str, base: Path | None = None) -> Path:
    """A path (relative to `base`, else to the current directory), or the name of a user's or packaged file."""
    if looks_like_path(name):
        path = (base or Path.cwd()) / Path(name).expanduser()
        if path.is_file():
            return path
        raise UserError(f"there is no {kind[:-1]} file {path}", "correct the path")
    for place in _places(kind):
        if (place / f"{name}.yaml").is_file():
            return place / f"{name}.yaml"
    known = names(kind)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    listed = ", ".join(known) or "none"
    raise UserError(
        f"there is no {kind[:-1]} file named {name!r}",
        f"{hint}known: {listed}; give your own file by path, e.g. ./{name}.yaml",
    )
