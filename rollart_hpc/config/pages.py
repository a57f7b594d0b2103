"""The pages of docs that are generated from schemas and tables. Owns their form; writes no file (`make docs` does).

docs/config.md   every key of run, task and site files
docs/runs.md     its tables of modes, states, exit codes, drop reasons and events, each between two marks
docs/algorithms.md   a table for each part of an algorithm, each between two marks
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rollart_hpc.config.algorithms import Entry, Part, Scope, entries
from rollart_hpc.config.modes import table
from rollart_hpc.config.recipe_trees import shown
from rollart_hpc.config.recipes import RECIPES, Recipe
from rollart_hpc.config.reference import TASK_ROOT, File, Key, Section, keys_of, sections
from rollart_hpc.vocabulary import DropReason, EventKind, ExitCode, RunState

_BEGIN = "<!-- {name}: written by `make docs` from rollart_hpc/{source} -->"
_END = "<!-- {name}: end -->"

_HEAD = """# Configuration keys

Generated from the schema by `make docs`; a test fails when this page is not current. Don't edit it: change the help
text in `rollart_hpc/config/schema*.py`, `site.py` or `modes.py` and run `make docs`.

The same in a terminal: `rollart-hpc keys` lists everything, `rollart-hpc keys flow` a part, and
`rollart-hpc keys flow.alpha` explains one key; `--json` is for scripts.

- An unknown key, a value of the wrong type or out of range is an error that names the nearest legal key or value.
  `rollart-hpc check RUN` reports all of them at once.
- `NAME` stands for a name: of a task, a pool or a hardware class.
- Units stand in the names: `_s` seconds, `_minutes`, `_tokens`, `_bytes`, `_gb`.
- Precedence, later wins: default < `defaults` of the site file < run file < `SBATCH_*` variables < `key=value` on the
  command line. A run file overrides a task file; a file overrides its `base`.
"""

_FILES = {
    File.RUN: (
        "Run files",
        "Packaged ones are found by name, your own by path: `rollart-hpc run quickstart`, `rollart-hpc run ./my.yaml`. "
        "Any key can be changed on the command line: `rollart-hpc run quickstart flow.alpha=2`. See [Runs](runs.md).",
    ),
    File.TASK: (
        "Task files",
        f"In a task file these keys stand at the top, without `{TASK_ROOT}.`; in a run file, and on the command line, "
        f"`{TASK_ROOT}.KEY` overrides them. See [Tasks](tasks.md).",
    ),
    File.SITE: (
        "Site files",
        "`rollart-hpc site init` writes one from the live cluster. A key of a hardware class overrides the key of the "
        "same name at the top. See [Sites](sites.md).",
    ),
}


def config_page() -> str:
    """docs/config.md."""
    lines = [_HEAD]
    for file, (title, text) in _FILES.items():
        mine = [section for section in sections() if section.file is file]
        lines += [f"## {title}", "", text, "", _contents(mine), ""]
        for section in mine:
            lines += [*_section(section), ""]
    return "\n".join(lines).rstrip() + "\n"


def with_tables(page: str) -> str:
    """docs/runs.md with its tables made anew."""
    page = _with_table(page, "modes", "config/modes.py", table())
    for name, lines in _vocabularies().items():
        page = _with_table(page, name, "vocabulary.py", lines)
    return page


def with_registries(page: str) -> str:
    """docs/algorithms.md with its tables made anew."""
    for part in Part:
        lines = _rows(("name", "what it is", "parameters", "scope", "paper"), map(_entry, entries(part).values()))
        page = _with_table(page, part, "trainers/algorithms", lines)
    lines = _rows(("recipe", "what it is; when to take it", "keys", "paper"), map(_recipe, RECIPES.items()))
    return _with_table(page, "recipe", "config/recipes.py", lines)


def _recipe(named: tuple[str, Recipe]) -> tuple[str, ...]:
    name, recipe = named
    keys = [f"`{key}: {shown(value)}`" for key, value in recipe.algorithm.items()]
    keys += [f"`tasks.NAME.{key}: {shown(value)}`" for key, value in recipe.task.items()]
    return f"`{name}`", recipe.help, "<br>".join(keys), recipe.paper


def _entry(entry: Entry) -> tuple[str, ...]:
    assert entry.params is not None, "ready-made parts declare their parameters"
    params = "<br>".join(f"`{k.path}` (`{k.shown_default}`): {_meaning(k)}" for k in keys_of(entry.params))
    return f"`{entry.name}`", entry.help, params, "batch" if entry.scope is Scope.BATCH else "", entry.paper


def _with_table(page: str, name: str, source: str, lines: Iterable[str]) -> str:
    first, last = _BEGIN.format(name=name, source=source), _END.format(name=name)
    head, begin, rest = page.partition(first)
    _, end, tail = rest.partition(last)
    assert begin and end, f"the page lacks {first} or {last}"
    return "\n".join([head + first, *lines, last + tail])


def _vocabularies() -> dict[str, list[str]]:
    codes = [(str(code.value), code.meaning) for code in ExitCode]
    states = [(f"`{state}`", state.meaning, _code(state)) for state in RunState]
    reasons = [(f"`{reason}`", reason.meaning) for reason in DropReason]
    events = [(f"`{kind}`", kind.meaning) for kind in EventKind]
    return {
        "states": _rows(("state", "meaning", "exit code"), states),
        "exit codes": _rows(("exit code", "meaning"), codes),
        "drop reasons": _rows(("reason", "meaning"), reasons),
        "events": _rows(("event", "meaning"), events),
    }


def _code(state: RunState) -> str:
    return "" if state.exit_code is None else str(state.exit_code.value)


def _rows(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (titles, ("---",) * len(titles), *rows)]


def _contents(mine: list[Section]) -> str:
    links = [f"[`{section.path}`](#{_anchor(section.path)})" for section in mine if section.path]
    return "Parts: " + ", ".join(links) + "."


def _anchor(path: str) -> str:
    """As GitHub makes it from a heading."""
    return path.lower().replace(".", "")


def _section(section: Section) -> Iterator[str]:
    if section.path:
        names = f" `NAME` is one of {_coded(section.names)}." if section.names else ""
        told = f"{section.help[0].upper()}{section.help[1:]}.{names}"
        yield from (f"### {section.path}", "", f"{told} {section.text}".strip(), "")
    yield from ("| key | type | default | meaning |", "|---|---|---|---|")
    for key in section.keys:
        cells = (f"`{key.path}`", _type(key), _default(key), _meaning(key))
        yield "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _type(key: Key) -> str:
    return f"one of {_coded(key.choices)}" if key.choices else key.legal


def _default(key: Key) -> str:
    if key.default_text:
        return key.default_text
    return "empty" if key.default == "" else f"`{key.shown_default}`"


def _meaning(key: Key) -> str:
    choices = "".join(f"<br>`{choice}`: {meaning}" for choice, meaning in key.meanings.items())
    rule = f"<br>Rule: {key.rule}" if key.rule else ""
    return f"{key.help}{choices}{rule}"


def _coded(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{word}`" for word in words)
