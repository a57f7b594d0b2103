"""Keys by prefix. Owns how a prefix matches and what is suggested when it does not."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from rollart_hpc.config.reference import NAME, TASK_ROOT, File, Key, all_keys
from rollart_hpc.errors import UserError

_ALIKE = 0.7  # of difflib: below it a guess misleads


def find(prefix: str, file: File | None = None) -> list[Key]:
    """The keys at or below `prefix`; a name may stand for NAME. Task keys are also found as their file has them."""
    prefix = prefix.partition("=")[0].strip(". ")  # a pasted key=value
    wanted = prefix.split(".")
    among = [key for key in all_keys() if file in (None, key.file)]
    found = [key for key in among if not prefix or any(_matches(wanted, path, key) for path in _paths(key))]
    if not found:
        raise UserError(f"there is no key {prefix!r}", _advice(prefix, among))
    return found


def _paths(key: Key) -> Iterator[str]:
    yield key.path
    if key.file is File.TASK:
        yield key.path.removeprefix(f"{TASK_ROOT}.")


def _matches(wanted: list[str], path: str, key: Key) -> bool:
    parts = path.split(".")
    if len(wanted) > len(parts) and not key.is_map:
        return False
    return all(want == part or (part == NAME and _may_be(want, key)) for want, part in zip(wanted, parts))


def _may_be(name: str, key: Key) -> bool:
    return not key.names or name in key.names


def _advice(prefix: str, among: list[Key]) -> str:
    near = nearest(prefix, [key.path for key in among])
    if near:
        return f"did you mean {', '.join(near)}? `rollart-hpc keys` lists all keys"
    tops = dict.fromkeys(key.path.partition(".")[0] for key in among)
    return f"legal at the top: {', '.join(tops)}; `rollart-hpc keys` lists all keys"


def nearest(prefix: str, paths: list[str], limit: int = 3) -> list[str]:
    """Keys and sections with the same last word, then those that look alike."""
    last = prefix.rpartition(".")[2]
    legal = list(dict.fromkeys([*paths, *(path.rpartition(".")[0] for path in paths if "." in path)]))
    words = difflib.get_close_matches(last, [path.rpartition(".")[2] for path in legal], limit, _ALIKE)
    ranked = [path for word in (last, *words) for path in legal if path.rpartition(".")[2] == word]
    return list(dict.fromkeys([*ranked, *difflib.get_close_matches(prefix, legal, limit, _ALIKE)]))[:limit]
