"""`chaos`: hit a live run at random, within limits, and check that it trained every step exactly once."""

from __future__ import annotations

import argparse
import re
import sys

import msgspec

from rollart_hpc.chaos.acts import ROLES, Kind
from rollart_hpc.chaos.choose import Limits
from rollart_hpc.chaos.session import Chaos, Wish, preview
from rollart_hpc.chaos.verdict import Summary
from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.errors import UserError
from rollart_hpc.launch.launcher import launcher_of_run
from rollart_hpc.rundir import RunDir, open_run_dir
from rollart_hpc.vocabulary import ExitCode

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def chaos(args: argparse.Namespace) -> int:
    run = open_run_dir(args.run_dir)
    launcher, limits = launcher_of_run(run), limits_of(run, args)
    wish = Wish(args.seed, seconds_of(args.lasting), args.every, args.patience, args.acts)
    if args.dry_run:
        for act in preview(run, launcher, limits, wish):
            print(act)
        return ExitCode.OK
    summary = Chaos(run, launcher, limits, wish, lambda text: print(text, file=sys.stderr, flush=True)).carry_out()
    print(msgspec.json.format(msgspec.json.encode(summary), indent=1).decode() if args.json else told(summary))
    if not summary.is_ok:
        return ExitCode.ENVIRONMENT
    return ExitCode.INTERRUPTED if summary.is_interrupted else ExitCode.OK


def seconds_of(text: str) -> float:
    """
    >>> seconds_of("10m")
    600.0
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if found is None:
        raise UserError(f"--for {text} is no duration", "give a number with s, m or h: --for 10m")
    return float(found[1]) * _SECONDS[found[2]]


def limits_of(run: RunDir, args: argparse.Namespace) -> Limits:
    config = read_resolved(run.config)
    roles = tuple(role for role in ROLES if not args.roles or role in args.roles)
    kinds = tuple(kind for kind in Kind if not args.kinds or kind in args.kinds)
    spare = max(0, config.restarts.per_role - 1)  # one is left for what happens by itself
    return Limits(roles, kinds, config.timeouts.silence_s, spare, args.at_once, args.whole_roles)


def told(summary: Summary) -> str:
    lines = [f"{summary.num_acts} acts in {summary.lasted_s:.0f} s, seed {summary.seed}"]
    for role, kinds in summary.acts.items():
        lines.append(f"  {role}: " + ", ".join(f"{kind} {count}" for kind, count in kinds.items()))
    lines.append(f"recovered {summary.num_recovered} times, at the latest after {summary.longest_recovery_s:.1f} s")
    lines += [f"not done {count} times: {reason}" for reason, count in summary.refused.items()]
    lines.append(f"steps {summary.steps_before} -> {summary.steps_after}, {summary.trajectories} trajectories trained")
    lines.append("every step was trained exactly once" if summary.is_ok else "PROBLEMS")
    return "\n".join([*lines, *(f"  {problem}" for problem in summary.problems)])
