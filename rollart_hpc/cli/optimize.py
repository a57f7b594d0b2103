"""`plan --optimize`: what a run should be at a site, by simulation. Owns the words, not the search."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from rollart_hpc.cli.plan import load_for_site
from rollart_hpc.cli.simulate import case_of
from rollart_hpc.config import packaged
from rollart_hpc.config.check import nearest
from rollart_hpc.config.launchers import is_cluster
from rollart_hpc.errors import UserError, command_line
from rollart_hpc.files import write_atomic
from rollart_hpc.simulate.knobs import VARY, WITH_A_PRICE, budget_of
from rollart_hpc.simulate.notes import told
from rollart_hpc.simulate.planner import Advice, Side, Wish, advise, as_text

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_GOALS = {"step": "time per step", "cost": "cost per step", "tokens": "trained tokens per second"}


def optimize(args: argparse.Namespace) -> int:
    seconds, vary = seconds_of(args.budget), _vary(args.vary)
    if args.write is not None and args.write.exists():
        raise UserError(f"--write {args.write}: the file exists", "choose another one")
    loaded = load_for_site(args, needs_model=False)
    if not is_cluster(loaded.site.launcher):
        raise UserError(
            f"--optimize: site {loaded.site.name} is one machine, whose pools share its CPUs",
            "name a cluster with --site (`rollart-hpc site init` writes a site file)",
        )
    case = case_of(args, loaded)
    budget = budget_of(case.config, case.site, args.gpus)
    wish = Wish(args.optimize, vary, budget, seconds, args.seeds, args.steps, max(1, len(os.sched_getaffinity(0))))
    advice = advise(case, wish, lambda text: print(text, file=sys.stderr, flush=True))
    if args.write is not None:
        write_atomic(args.write, _run_file(args, advice))
    notes = told(case)
    if args.json:
        print(msgspec.json.format(msgspec.json.encode(_data(args, wish, advice, notes)), indent=1).decode())
        return 0
    title = f"{case.config.name} on {case.site.name}: {_GOALS[wish.goal]}, simulated"
    print("\n".join([title, "", *lines(wish, advice), "", *(f"assumed: {note}" for note in notes)]))
    return 0


def seconds_of(text: str) -> float:
    """
    >>> seconds_of("2m")
    120.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None or not float(found[1]):
        raise UserError(f"--budget {text} is no duration", "give a number with s, m or h: --budget 2m")
    return float(found[1]) * _SECONDS[found[2]]


def _vary(given: list[str]) -> tuple[str, ...]:
    known = [*VARY, *WITH_A_PRICE]
    if given == ["all"]:
        return tuple(known)
    for name in given:
        if name not in known:
            raise UserError(f"--vary {name}: there is no such thing to vary", f"{nearest(name, known)}, or use all")
    return tuple(given) or VARY


# --- words ---------------------------------------------------------------------------------------


def lines(wish: Wish, advice: Advice) -> list[str]:
    found = advice.found
    until = "no move helps any more" if found.is_complete else "the time was over"
    searched = f"{found.num_tried} candidates in {advice.seconds:.0f} s ({found.num_impossible} impossible): {until}"
    sides = {"as it is": advice.before}
    if advice.after is not advice.before:
        sides["better"] = advice.after
    head = f"{'':<10}{'s per step':>12}{'trained tok/s':>15}{'GPU-h/step':>12}{'cost/step':>11}  bound by"
    said = [searched, "", head, *(_row(name, side) for name, side in sides.items()), ""]
    if advice.fitted:
        said += [f"to fit into the GPUs: {_overrides(advice.fitted)}", ""]
    if advice.after is advice.before:
        return [*said, "nothing better was found"]
    seeds = len(advice.after.outcomes)
    spread = f" ± {advice.spread:.2f} over {seeds} seeds" if seeds > 1 else ", one seed only"
    said += [
        f"gain: {advice.gain:.2f}x{spread}", "", "set:",
        *(f"  {key}={as_text(value)}" for key, value in advice.after.changes.items()), "",
        "the same gain if the workload is another one:",
        *(f"  {name:<24}{_gain(gain)}" for name, gain in advice.shaken.items()),
    ]  # fmt: skip
    if priced := sorted({key for key in advice.after.changes if _has_price(key)}):
        said += ["", f"{', '.join(priced)}: what is learnt changes too, which is not simulated"]
    return said


def _has_price(key: str) -> bool:
    return key in ("flow.alpha", "flow.redundancy", "flow.redundant_groups")


def _row(name: str, side: Side) -> str:
    return (
        f"{name:<10}{side.mean('step_s'):>12.1f}{side.mean('trained_tokens_per_s'):>15.0f}"
        f"{side.mean('gpu_hours_per_step'):>12.2f}{side.mean('cost_per_step'):>11.2f}  {side.outcomes[0].bound}"
    )


def _gain(gain: float | None) -> str:
    return "not simulated" if gain is None else f"{gain:.2f}x"


def _overrides(changes: dict[str, Any]) -> str:
    return " ".join(f"{key}={as_text(value)}" for key, value in changes.items())


def _data(args: argparse.Namespace, wish: Wish, advice: Advice, notes: list[str]) -> dict[str, Any]:
    found = advice.found
    return {
        "run": args.run,
        "optimize": wish.goal,
        "gpus": wish.budget,
        "tried": found.num_tried,
        "impossible": found.num_impossible,
        "is_complete": found.is_complete,
        "seconds": advice.seconds,
        "gain": advice.gain,
        "spread": advice.spread,
        "overrides": advice.after.changes,
        "sensitivity": advice.shaken,
        "before": [outcome.as_dict() for outcome in advice.before.outcomes],
        "after": [outcome.as_dict() for outcome in advice.after.outcomes],
        "assumed": notes,
    }


def _run_file(args: argparse.Namespace, advice: Advice) -> bytes:
    """A run file over the one that was planned, with the overrides of the command line."""
    tree: dict[str, Any] = {"base": str(_base(args.run))}
    given = dict(text.partition("=")[::2] for text in args.overrides)
    for key, value in {**given, **advice.after.changes}.items():
        here = tree
        *path, last = key.split(".")
        for name in path:
            here = here.setdefault(name, {})
        here[last] = msgspec.yaml.decode(value) if isinstance(value, str) and key in given else value
    gain = f"{advice.gain:.2f}x as good ({args.optimize})"
    return (
        f"# Written by `{command_line('plan', args.run, '--optimize', args.optimize)}`: simulated {gain}.\n".encode()
        + msgspec.yaml.encode(tree)
    )


def _base(run: str) -> str | Path:
    return Path(run).resolve() if packaged.looks_like_path(run) else run
