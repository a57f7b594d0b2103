"""Where the keys of a configuration were written: file and line, or the command line. Checks nothing.

A problem is a line of text that begins with a key path; `located` adds the place of that key, or of the section that
lacks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import yaml

COMMAND_LINE = "command line"


class Locations:
    def __init__(self) -> None:
        self._files: list[tuple[str, Path]] = []  # of lower precedence first
        self._overrides: list[str] = []

    def add(self, path: Path, prefix: str = "") -> None:
        """The keys of this file stand below `prefix` and replace those of files that were added before."""
        self._files.append((prefix, path))

    def add_overrides(self, overrides: Sequence[str]) -> None:
        self._overrides += [text.partition("=")[0].strip() for text in overrides if "=" in text]

    def __add__(self, above: Locations) -> Locations:
        both = Locations()
        both._files, both._overrides = self._files + above._files, self._overrides + above._overrides
        return both

    def located(self, problems: Iterable[str]) -> list[str]:
        places: dict[str, str] = {}
        for prefix, path in self._files:
            places |= {key: f"{path.name}, line {line}" for key, line in _lines(path, prefix)}
        places |= dict.fromkeys(self._overrides, COMMAND_LINE)
        return [_with_place(problem, places) for problem in problems]


def key_of(problem: str) -> str:
    """
    >>> key_of("classes.h800.gpus: 0, but gres names a GPU: set it")
    'classes.h800.gpus'
    """
    return problem.partition(": ")[0]


def _with_place(problem: str, places: dict[str, str]) -> str:
    key = key_of(problem)
    while key:
        if key in places:
            return f"{problem} [{places[key]}]"
        key = key.rpartition(".")[0]
    return problem


def _lines(path: Path, prefix: str) -> Iterator[tuple[str, int]]:
    """Every key path of a YAML file with the number of its line. A file that can't be read has none."""
    try:
        root = yaml.compose(path.read_text(), Loader=yaml.SafeLoader)
    except (OSError, ValueError, yaml.YAMLError):
        return
    waiting: list[tuple[str, yaml.Node | None]] = [(prefix, root)]
    while waiting:
        above, node = waiting.pop()
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                here = f"{above}.{key.value}" if above else str(key.value)
                yield here, key.start_mark.line + 1
                waiting.append((here, value))
