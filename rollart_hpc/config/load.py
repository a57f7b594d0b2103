"""From files and overrides to one checked configuration. Owns precedence and relative paths.

    site file `defaults` < run file < SBATCH_* variables < key=value overrides
    task file < what the run says under tasks.NAME;  `base` of a run or site file < the file
    tasks.NAME: null drops a task of the base, and on the command line one of the run file

A task stands under its name, with `file` unless it is a packaged one, or under the path of its file.
A relative path is relative to the file it stands in; on the command line, to the current directory.
Every problem of every file is reported at once as a `ConfigError`, with file and line. `change` puts overrides over the
configuration of an existing run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rollart_hpc.config import packaged
from rollart_hpc.config.automatic import find_auto_problems
from rollart_hpc.config.callables import find_code_problems
from rollart_hpc.config.check import Tree, find_problems
from rollart_hpc.config.classes import find_class_problems, set_profiles
from rollart_hpc.config.key_names import as_fields, as_keys
from rollart_hpc.config.locations import Locations, key_of
from rollart_hpc.config.model_size import count_in
from rollart_hpc.config.moved import moved, without_replaced
from rollart_hpc.config.partial import of_their_own, without
from rollart_hpc.config.recipe_trees import with_recipe, with_task_keys, without_dropped
from rollart_hpc.config.rules import find_conflicts, find_model_problems, find_oddities
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig, find_site_conflicts
from rollart_hpc.errors import ConfigError, UserError

Config = TypeVar("Config", RunConfig, SiteConfig)
_SBATCH_VARIABLES = {"account": "SBATCH_ACCOUNT", "qos": "SBATCH_QOS", "reservation": "SBATCH_RESERVATION"}
_FREE = ("params", "corrections", "shaping")  # ends of keys of maps in which null is a value
_FAILED = object()  # a value whose interpolation failed: reported, then left out


class Loaded(NamedTuple):
    config: RunConfig
    site: SiteConfig
    warnings: list[str]
    notes: list[str]  # what the user may not expect, although it is right


def load(run: str | Path, overrides: Sequence[str] = (), site: str | Path | None = None) -> RunConfig:
    return load_all(run, overrides, site).config


def load_all(
    run: str | Path,
    overrides: Sequence[str] = (),
    site: str | Path | None = None,
    else_site: str = RunConfig.site,
    *,
    needs_model: bool = True,
) -> Loaded:
    """`run` and `site` are names of files or paths; `overrides` are `key=value`.

    `else_site` counts if neither `site` nor the run names one. Without `needs_model` a missing model is a warning.
    """
    problems: list[str] = []
    locations, task_locations = Locations(), Locations()
    notes: list[str] = []
    path, written = _read_run(run, site, locations, notes)
    ours = _merge(_name_tasks(written, problems), _of_environment())
    given = _name_tasks(_parse_overrides(overrides, problems), problems)
    undroppable = _undroppable(ours, given)
    problems += undroppable.values()
    notes += [f"task {name} is dropped: tasks.{name}=null" for name in _dropped(ours, given)]
    said = without(_over(ours, given), [f"tasks.{name}" for name in undroppable])
    site_name = str(site or said.get("site") or else_site)
    site_config, site_problems = _try_site(site_name)
    said["site"] = site_name
    merged = with_recipe(_merge({"name": path.stem}, moved(site_config.defaults), said), _merge, notes)
    own = dict(_load_tasks(merged.get("tasks"), path.parent, problems, task_locations))
    merged["tasks"] = with_task_keys(merged, own)
    tree = _interpolate(without_dropped(merged), problems)
    config = _build(RunConfig, tree, problems)
    problems += find_code_problems(tree)
    absent = of_their_own(find_model_problems(config), problems)
    problems += of_their_own([*find_conflicts(config), *_settle_classes(config, site_config, site_problems)], problems)
    if needs_model:
        problems += absent
    if problems or site_problems:
        locations.add_overrides(overrides)
        raise ConfigError(f"run {run}", [*(task_locations + locations).located(problems), *site_problems])
    _count_parameters(config)
    return Loaded(config, site_config, [*absent, *find_oddities(config, said)], notes)


def _settle_classes(config: RunConfig, site: SiteConfig, site_problems: list[str]) -> list[str]:
    """What the run asks of the site's classes and does not get; pools get their profiles."""
    if site_problems:
        return []  # a class may be missing because it is wrong
    problems = list(find_class_problems(config, site))
    if not problems:
        set_profiles(config, site)
        problems += find_auto_problems(config, site)
    return problems


def _count_parameters(config: RunConfig) -> None:
    model = config.model
    if model.kind == "directory" and model.path and not model.parameters_b:
        model.parameters_b = count_in(Path(model.path)) / 1e9


def _read_run(run: str | Path, site: str | Path | None, locations: Locations, notes: list[str]) -> tuple[Path, Tree]:
    """A run file that can't be read hides its own mistakes, but not those of the site file."""
    try:
        path = packaged.find("runs", str(run))
        return path, _with_base("runs", path, locations, notes)
    except UserError as error:
        others = _try_site(str(site))[1] if site else []
        if not others:
            raise
        raise ConfigError(f"run {run}", [f"{error.what}; {error.fix}", *others]) from None


def change(config: RunConfig, overrides: Sequence[str], source: str) -> tuple[RunConfig, list[str]]:
    """A resolved configuration with `key=value` merged over it, checked again; and warnings."""
    problems: list[str] = []
    locations = Locations()
    said = _name_tasks(_parse_overrides(overrides, problems), problems)
    tree: Tree = as_keys(RunConfig, asdict(config))
    tasks = said.get("tasks")
    if isinstance(tasks, dict):
        new = {name: given for name, given in tasks.items() if name not in tree["tasks"]}
        said = {**said, "tasks": {**tasks, **dict(_load_tasks(new, Path.cwd(), problems, locations))}}
    merged = _merge(without_replaced(tree, said), said)
    if isinstance(said.get("algorithm"), dict) and said["algorithm"].get("recipe"):
        merged = with_recipe(merged, _merge, [])
    tree = _interpolate(without_dropped(merged), problems)
    changed = _build(RunConfig, tree, problems)
    problems += find_code_problems(tree)
    problems += of_their_own(find_conflicts(changed), problems)
    if problems:
        locations.add_overrides(overrides)
        raise ConfigError(source, locations.located(problems))
    return changed, find_oddities(changed, said)


def load_site(site: str | Path) -> SiteConfig:
    path, config, problems = _check_site(site)
    if problems:
        raise ConfigError(f"site {site} ({path})", problems)
    return config


def _check_site(site: str | Path) -> tuple[Path, SiteConfig, list[str]]:
    path = packaged.find("sites", str(site))
    problems: list[str] = []
    locations = Locations()
    config = _build(SiteConfig, _interpolate(_with_base("sites", path, locations, []), problems), problems)
    problems += of_their_own(find_site_conflicts(config), problems)
    return path, config, locations.located(problems)


def _try_site(site: str) -> tuple[SiteConfig, list[str]]:
    """As much of the site as is right, so that the run can be checked too, and what is wrong with it."""
    try:
        _, config, problems = _check_site(site)
    except UserError as error:
        return SiteConfig(), [f"site {site}: {error.what}; {error.fix}"]
    return config, [f"site {site}: {problem}" for problem in problems]


def _with_base(
    kind: packaged.Kind, path: Path, locations: Locations, notes: list[str], above: tuple[Path, ...] = ()
) -> Tree:
    """A file over the one it names as `base`. Its own name there means the packaged file of that name."""
    tree = _merge({"name": path.stem}, _read(path))
    base = tree.pop("base", None)
    if base is None:
        locations.add(path)
        return tree
    if str(base) == path.stem and path.parent != packaged.directory(kind):
        base_path = packaged.directory(kind) / f"{base}.yaml"
    else:
        base_path = packaged.find(kind, str(base), path.parent)
    if base_path in (*above, path) or not base_path.is_file():
        raise UserError(
            f"{path}: base: {base} is this file, or builds on it, or does not exist",
            "name another file, or remove base",
        )
    below = _with_base(kind, base_path, locations, notes, (*above, path))
    locations.add(path)
    if kind == "runs":
        notes += _told_of_base(str(base), below, tree)
    return _over(below, tree)


def _over(below: Tree, tree: Tree) -> Tree:
    """`tree` merged over `below`. A task that `below` has and `tree` sets to null is dropped."""
    dropped = _dropped(below, tree)
    below = without_replaced(below, tree)
    if not dropped:
        return _merge(below, tree)
    kept = {key: given for key, given in below["tasks"].items() if key not in dropped.values()}
    own = {key: given for key, given in tree["tasks"].items() if key not in dropped}
    return _merge({**below, "tasks": kept}, {**tree, "tasks": own})


def _dropped(below: Tree, tree: Tree) -> dict[str, str]:
    """Keys of tasks that `tree` sets to null, with the key that `below` has them under: the same, or a path."""
    known = _tasks_of(below)
    names = {_name_of(key, given): key for key, given in known.items()} | {key: key for key in known}
    return {key: names[key] for key, given in _tasks_of(tree).items() if given is None and key in names}


def _undroppable(below: Tree, given: Tree) -> dict[str, str]:
    """Problems by task. On the command line null means nothing else, so the task must be there."""
    gone = [key for key, value in _tasks_of(given).items() if value is None and key not in _dropped(below, given)]
    listed = ", ".join(map(str, _tasks_of(below))) or "none"
    return {name: f"tasks.{name}: null, but there is no such task to drop; the run has: {listed}" for name in gone}


def _told_of_base(base: str, below: Tree, tree: Tree) -> list[str]:
    """A base adds its tasks to those of the file, which nobody sees there."""
    dropped = set(_dropped(below, tree).values())
    names = {key: _name_of(key, given) for key, given in _tasks_of(below).items()}
    kept = [name for key, name in names.items() if key not in dropped]
    gone = [name for key, name in names.items() if key in dropped]
    notes = [f"tasks from base {base}: {', '.join(kept)}"] if kept else []
    return [*notes, *([f"tasks of base {base} that are dropped: {', '.join(gone)}"] if gone else [])]


def _tasks_of(tree: Tree) -> Tree:
    tasks = tree.get("tasks")
    return tasks if isinstance(tasks, dict) else {}


def _name_of(key: str, given: Any) -> str:
    named = _name_tasks({"tasks": {key: given}}, [])["tasks"]
    return str(next(iter(named), key))


def _of_environment() -> Tree:
    """Variables that sbatch would obey, as the keys they stand for, so that the plan shows them."""
    job = {key: os.environ[name] for key, name in _SBATCH_VARIABLES.items() if os.environ.get(name)}
    return {"job": job} if job else {}


def _build(schema: type[Config], tree: Tree, problems: list[str]) -> Config:
    """The configuration, with defaults for the keys that are wrong. Each of them is added to `problems`."""
    right = tree
    while found := find_problems(schema, right):
        problems += found if right is tree else []
        kept = without(right, [key_of(problem) for problem in found])
        right = kept if kept != right else {}  # {}: a name so odd that its problem can't be found again
    return msgspec.convert(as_fields(schema, _without_empty(right)), schema)


def _without_empty(tree: Tree) -> Tree:
    """Drop sections with nothing below them (`model:`), so that defaults apply. Maps of the user keep their nulls."""
    return {
        k: _without_empty(v) if isinstance(v, dict) and not k.endswith(_FREE) else v
        for k, v in tree.items()
        if v is not None
    }


# --- sources -----------------------------------------------------------------------------------


def _read(path: Path) -> Tree:
    """A YAML file as plain values, with relative paths made absolute."""
    try:
        content = OmegaConf.load(path)
    except (YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {error}", "correct the file") from None
    except OSError as error:
        raise UserError(f"can't read {path}: {error.strerror}", "check the path and its permissions") from None
    if not isinstance(content, DictConfig):
        raise UserError(f"{path} holds a list or a single value, not keys", "write `key: value` lines")
    return moved(_anchor(_plain(content), path.parent))


def _parse_overrides(overrides: Sequence[str], problems: list[str]) -> Tree:
    good: list[str] = []
    for text in overrides:
        key, equals, _ = text.partition("=")
        if equals and key.strip(". "):
            good.append(text)
        else:
            problems.append(f"{text}: not of the form key=value; write e.g. flow.alpha=2")
    try:
        return moved(_anchor(_plain(OmegaConf.from_dotlist(good)), Path.cwd()))
    except (YAMLError, OmegaConfBaseException, ValueError) as error:
        problems.append(f"{' '.join(good)}: {error}")
        return {}


def _name_tasks(tree: Tree, problems: list[str]) -> Tree:
    """`tasks: {./guess.yaml: {...}}` as `tasks: {guess: {file: ./guess.yaml, ...}}`; paths are absolute already."""
    tasks = tree.get("tasks")
    if not isinstance(tasks, dict):
        return tree
    named = {key: given for key, given in tasks.items() if not _is_path(key)}
    origin: dict[str, str] = {str(key): str(key) for key in named}
    for key, given in tasks.items():
        if not _is_path(key):
            continue
        if given is not None and not isinstance(given, dict):
            problems.append(_no_section(key, given))
            continue
        try:
            path = packaged.find("tasks", key)
            name = str((given or {}).get("name") or _read(path).get("name") or path.stem)
        except UserError as error:
            problems.append(f"tasks.{key}: {error.what}; {error.fix}")
            continue
        if name in named:
            problems.append(
                f"tasks.{key}: another task is named {name} ({origin[name]}); "
                f"give it its own name, e.g. tasks: {{{name}2: {{file: {key}}}}}"
            )
            continue
        named[name], origin[name] = {"file": key, **(given or {})}, key
    return {**tree, "tasks": named}


def _is_path(key: object) -> bool:
    return isinstance(key, str) and packaged.looks_like_path(key)


def _no_section(name: object, given: object) -> str:
    return (
        f"tasks.{name}: {given!r} is not a section; write the keys that differ from the task file, e.g. {{weight: 2}}"
    )


def _load_tasks(said: Any, base: Path, problems: list[str], locations: Locations) -> Iterator[tuple[str, Any]]:
    """Each task's file, with the run's changes merged over it. `file` names the file if NAME does not."""
    if said is None:
        return
    if not isinstance(said, dict):
        problems.append(f"tasks: {said!r} is not a section; write each task as a key, e.g. tasks: {{frozenlake: {{}}}}")
        return
    for name, given in said.items():
        if given is not None and not isinstance(given, dict):
            problems.append(_no_section(name, given))
            continue
        changes = dict(given or {})
        try:
            path = packaged.find("tasks", str(changes.pop("file", name)), base)
            locations.add(path, f"tasks.{name}")
            yield str(name), _merge(_read(path), changes, {"name": str(name)})
        except UserError as error:
            problems.append(f"tasks.{name}: {error.what}; {error.fix}")


def _anchor(tree: Tree, base: Path) -> Tree:
    """Make the relative paths of one source absolute, before sources from elsewhere are merged over it."""
    anchored = dict(tree)
    for key in ("environment", "reward"):
        if isinstance(tree.get(key), str) and ".py:" in tree[key]:
            anchored[key] = _absolute(tree[key], base)
    if isinstance(tree.get("file"), str) and packaged.looks_like_path(tree["file"]):
        anchored["file"] = _absolute(tree["file"], base)
    model = tree.get("model")
    if isinstance(model, dict) and isinstance(model.get("path"), str) and model["path"]:
        anchored["model"] = {**model, "path": _absolute(model["path"], base)}
    if isinstance(tree.get("algorithm"), dict):
        anchored["algorithm"] = _anchor_algorithm(tree["algorithm"], base)
    tasks = tree.get("tasks")
    if isinstance(tasks, dict):
        anchored["tasks"] = {
            _absolute(k, base) if _is_path(k) else k: _anchor(v, base) if isinstance(v, dict) else v
            for k, v in tasks.items()
        }
    return anchored


def _anchor_algorithm(section: Tree, base: Path) -> Tree:
    """Functions of the user's own are values of some keys and keys of some maps."""

    def anchored(text: Any) -> Any:
        return _absolute(text, base) if isinstance(text, str) and ".py:" in text else text

    found = {key: anchored(value) for key, value in section.items()}
    for key in ("corrections", "shaping"):
        if isinstance(section.get(key), dict):
            found[key] = {anchored(name): params for name, params in section[key].items()}
    return found


def _absolute(path: str, base: Path) -> str:
    return path if path.startswith("${") else str((base / Path(path).expanduser()).resolve())


# --- OmegaConf ---------------------------------------------------------------------------------


def _plain(config: Any) -> Tree:
    tree: Tree = OmegaConf.to_container(config, resolve=False)  # type: ignore[assignment]
    return tree


def _merge(*trees: Tree) -> Tree:
    return _plain(OmegaConf.merge(*trees))


def _interpolate(tree: Tree, problems: list[str]) -> Tree:
    """Replace every ${...}; each that fails is one problem."""
    config = OmegaConf.create(tree)

    def resolve(value: Any, path: list[str]) -> Any:
        if isinstance(value, dict):
            pairs = ((k, resolve(v, [*path, str(k)])) for k, v in value.items())
            return {k: v for k, v in pairs if v is not _FAILED}
        if isinstance(value, list):
            return [resolve(v, [*path, str(i)]) for i, v in enumerate(value)]
        if not isinstance(value, str) or ("${" not in value and value != "???"):
            return value
        try:
            found = OmegaConf.select(config, "".join(f"[{p}]" for p in path), throw_on_missing=True)
        except OmegaConfBaseException as error:
            problems.append(f"{'.'.join(path)}: {value!r} can't be resolved: {str(error).splitlines()[0]}")
            return _FAILED
        return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found

    resolved: Tree = resolve(tree, [])
    return resolved
