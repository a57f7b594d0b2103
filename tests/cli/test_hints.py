"""A printed command can be pasted into a shell, whatever the names of directories."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Iterator
from pathlib import Path

import rollart_hpc
from rollart_hpc.errors import PROGRAM, command_line

PACKAGE = Path(rollart_hpc.__file__).parent


def test_a_command_survives_the_shell() -> None:
    assert shlex.split(command_line("resume", Path("/my runs/it's"), "steps=4")) == [
        "rollart-hpc", "resume", "/my runs/it's", "steps=4",
    ]  # fmt: skip


def test_no_other_place_puts_values_into_a_command() -> None:
    """f"rollart-hpc resume {path}" would not be quoted."""
    found = [f"{path}:{line}" for path in PACKAGE.rglob("*.py") for line in unquoted(path)]
    assert not found, f"use errors.command_line: {found}"


def unquoted(path: Path) -> Iterator[int]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.JoinedStr):
            continue
        is_open = False
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                if is_open:
                    yield node.lineno
            elif isinstance(part, ast.Constant):
                is_open = ends_in_a_command(str(part.value))


def ends_in_a_command(text: str) -> bool:
    """The text names the program and a command, and goes on with an argument: `rollart-hpc status `, `... --site `."""
    _, found, rest = text.rpartition(f"{PROGRAM} ")
    words = rest.split()
    return bool(found and words) and rest.endswith(" ") and words[0].isalpha() and words[0] in COMMANDS


COMMANDS = frozenset({
    "run", "check", "keys", "submit", "debug", "plan", "resume", "status", "logs", "cancel", "join", "report", "model",
    "site", "doctor", "bench",
})  # fmt: skip


def test_the_search_finds_what_it_is_for(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        'f"resume it: rollart-hpc resume {run}"\nf"x: rollart-hpc doctor --site {site}"\nf"rollart-hpc {x}"'
    )
    assert list(unquoted(path)) == [1, 2]
