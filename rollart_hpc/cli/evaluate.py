"""`eval`: plays held-out seeds with a run's weights or with any model, and says what they scored.

An evaluation is a run without training steps, so it works wherever runs work, and its seeds are those of every
validation of the same tasks. The weights of a run are exported next to the evaluation's run directory.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

import yaml

from rollart_hpc.cli.export import export_checkpoint, find_checkpoint
from rollart_hpc.cli.following import follow_to_the_end
from rollart_hpc.cli.plan import load_for_site, new_run, run_root_of, tell_warnings
from rollart_hpc.cli.screen import LiveScreen
from rollart_hpc.config.load import Loaded, change, load_site
from rollart_hpc.config.resolved import read_resolved, read_site
from rollart_hpc.config.schema import TrainerConfig
from rollart_hpc.errors import SiteError, UserError, command_line
from rollart_hpc.launch.launcher import Handed, NewRun, launcher_of
from rollart_hpc.launch.summary import table
from rollart_hpc.observe import metrics
from rollart_hpc.observe.estimates import Estimate, estimate
from rollart_hpc.rundir import RunDir, new_run_dir, open_run_dir
from rollart_hpc.vocabulary import ExitCode, LineKind

SAMPLED = 1.0  # temperature with several samples per seed
_TITLES = ("task", "seeds", "plays", "success", "95% interval", "reward", "pass@k")


def evaluate(args: argparse.Namespace) -> int:
    tasks = [text for text in args.tasks if "=" not in text]
    overrides = [*_settings(args), *(text for text in args.tasks if "=" in text), *args.overrides]
    source = Path(args.source)
    if (source / "run.json").is_file():
        new = _of_run(open_run_dir(source), args, tasks, overrides)
    elif (source / "config.json").is_file():
        new = _of_model(source.absolute(), args, tasks, overrides)
    else:
        fix = "name a run directory, or a Hugging Face directory with config.json"
        raise UserError(f"{source} is neither a run nor a model", fix)
    code = _play(new, quiet=args.quiet or args.json)
    if code:
        what = f"the evaluation ended early, with code {code}"
        raise SiteError(what, f"see {command_line('status', new.run.path)}")
    return _tell(new.run, as_json=args.json)


def _settings(args: argparse.Namespace) -> list[str]:
    temperature = args.temperature if args.temperature is not None else (SAMPLED if args.samples > 1 else 0.0)
    return [
        "steps=0",
        "model.kind=directory",
        f"validation.plays={args.seeds * args.samples}",
        f"validation.samples={args.samples}",
        f"validation.temperature={temperature}",
    ]


# --- what is evaluated -------------------------------------------------------------------------


def _of_model(source: Path, args: argparse.Namespace, tasks: list[str], overrides: list[str]) -> NewRun:
    if not tasks:
        raise UserError("no task is named", f"add one: {command_line('eval', source, 'frozenlake')}")
    named = dict(map(_named, tasks))
    with tempfile.TemporaryDirectory(prefix="rollart-eval-") as scratch:
        path = Path(scratch) / "eval.yaml"
        path.write_text(yaml.safe_dump({"name": f"{source.name}-eval", "tasks": named}))
        whole = [f"model.path={source}", *overrides]
        loaded = load_for_site(argparse.Namespace(run=str(path), overrides=whole, site=args.site))
    return new_run(loaded, args.run_dir)


def _of_run(source: RunDir, args: argparse.Namespace, tasks: list[str], overrides: list[str]) -> NewRun:
    """With the run's engines, pools and tasks; of its trainer only a rank that publishes the weights."""
    checkpoint = find_checkpoint(source, args.step)
    site = load_site(args.site) if args.site else read_site(source.site)
    old = read_resolved(source.config)
    name = f"{old.name}-eval"
    target = RunDir(args.run_dir) if args.run_dir else new_run_dir(name, run_root_of(site))
    exported = target.path.with_name(f"{target.path.name}-model")
    plain = replace(old, trainer=replace(TrainerConfig(), dtype=old.trainer.dtype))
    named = dict(map(_named, tasks))
    added = [f"tasks.{task}={json.dumps(given)}" for task, given in named.items() if task not in old.tasks]
    said = [f"name={name}", f"site={site.name}", f"model.path={exported}", *overrides, *added]
    config, warnings = change(plain, said, f"eval {source.path}")
    tell_warnings(warnings)
    print(f"exporting step {checkpoint.step} of {source.path} to {exported}", file=sys.stderr, flush=True)
    export_checkpoint(source, checkpoint, exported)
    chosen = {task: own for task, own in config.tasks.items() if task in named or not named}
    return new_run(Loaded(replace(config, tasks=chosen), site, [], []), str(target.path))


def _named(task: str) -> tuple[str, dict[str, str]]:
    """The name of a task, and its settings, from a name or a file."""
    path = Path(task)
    return (path.stem, {"file": str(path.absolute())}) if path.suffix in (".yaml", ".yml") else (task, {})


# --- playing and telling -----------------------------------------------------------------------


def _play(new: NewRun, *, quiet: bool) -> int:
    launcher = launcher_of(new.site)
    with LiveScreen(new.run, quiet=quiet) as screen:
        result = launcher.start(new, screen)
    if isinstance(result, Handed):
        print(f"{result.title} submitted", file=sys.stderr, flush=True)
        return follow_to_the_end(new.run, launcher, quiet)
    return result.exit_code or ExitCode.OK


def _tell(run: RunDir, *, as_json: bool) -> int:
    lines = [line for line in metrics.lines(run.metrics) if line.get("kind") == LineKind.VALIDATION]
    found = {str(line["task"]): estimate(line) for line in lines}
    if as_json:
        tasks = {task: asdict(each) if each else None for task, each in found.items()}
        print(json.dumps({"run_dir": str(run.path), "tasks": tasks}, indent=1))
        return ExitCode.OK
    rows = [_row(task, each) for task, each in found.items()]
    print("\n".join([*table(_TITLES, rows), f"run directory: {run.path}"]))
    return ExitCode.OK


def _row(task: str, each: Estimate | None) -> tuple[str, ...]:
    if each is None:
        return (task, "0", "0", "-", "-", "-", "-")
    passed = ", ".join(f"{k}: {share:.3f}" for k, share in each.pass_at.items() if k > 1) or "-"
    reward = f"{each.reward:.3f}" + (f" +- {each.reward_error:.3f}" if each.reward_error is not None else "")
    interval = f"{each.low:.3f} to {each.high:.3f}"
    return task, str(each.seeds), str(each.plays), f"{each.success:.3f}", interval, reward, passed
