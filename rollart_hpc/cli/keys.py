"""`keys`: the keys that run, task and site files may contain."""

from __future__ import annotations

import argparse
import json
import shutil
import textwrap
from collections.abc import Iterator

from rollart_hpc.config.key_search import find
from rollart_hpc.config.reference import TASK_ROOT, File, Key, Section, sections

_FILES = {
    File.RUN: "RUN FILE: rollart-hpc run FILE; on the command line as key=value",
    File.TASK: f"TASK FILE: keys without `{TASK_ROOT}.`; a run file overrides them under tasks.NAME",
    File.SITE: "SITE FILE: rollart-hpc submit RUN --site FILE",
}


def keys(args: argparse.Namespace) -> int:
    found = find(args.prefix, File(args.file) if args.file else None)
    if args.json:
        print(json.dumps([key.as_dict() for key in found], indent=1))
        return 0
    width = shutil.get_terminal_size((100, 24)).columns
    is_one = args.prefix and len({key.path for key in found}) == 1
    print("\n".join(_full(found, width) if is_one else _listed(found, width)))
    return 0


def _listed(found: list[Key], width: int) -> Iterator[str]:
    """Two lines per key, grouped by file and section."""
    file = None
    for section in sections():
        mine = [key for key in section.keys if key in found]
        if not mine:
            continue
        if section.file is not file:
            yield from ("", _FILES[section.file]) if file else (_FILES[section.file],)
        file = section.file
        yield from ("", _title(section))
        for key in mine:
            yield f"  {key.path} = {key.shown_default}  ({key.legal})"
            yield from _wrapped(key.gist, width, 6)


def _title(section: Section) -> str:
    names = f" (NAME is one of {', '.join(section.names)})" if section.names else ""
    return f"{section.path}: {section.help}{names}" if section.path else section.help


def _full(found: list[Key], width: int) -> Iterator[str]:
    """Everything about a key, which may exist in several files."""
    for number, key in enumerate(found):
        if number:
            yield ""
        yield key.path
        yield from _wrapped(key.help, width, 2)
        yield f"  file:     {_where(key)}"
        yield f"  type:     {key.legal}"
        yield f"  default:  {key.shown_default}"
        if key.rule:
            yield f"  rule:     {key.rule}"
        for choice, meaning in key.meanings.items():
            yield from _wrapped(f"{choice}: {meaning}", width, 4, 8)


def _where(key: Key) -> str:
    if key.file is File.TASK:
        return f"task file, as {key.path.removeprefix(f'{TASK_ROOT}.')}; or run file, as {key.path}"
    return f"{key.file} file" + (f"; on the command line: {key.path}=VALUE" if key.file is File.RUN else "")


def _wrapped(text: str, width: int, indent: int, hanging: int | None = None) -> list[str]:
    rest = " " * (indent if hanging is None else hanging)
    return textwrap.wrap(text, max(width, 40), initial_indent=" " * indent, subsequent_indent=rest)
