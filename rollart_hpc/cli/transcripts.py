"""`transcripts`: the trajectories of a run as text, or as JSON lines for other tools."""

from __future__ import annotations

import argparse
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from rollart_hpc.errors import UserError
from rollart_hpc.observe.plays import Play
from rollart_hpc.observe.transcripts import Where, extremes, read, with_advantages
from rollart_hpc.rundir import RunDir, open_run_dir
from rollart_hpc.vocabulary import ExitCode

SHOWN = 10
_RANGE = re.compile(r"(\d+)(?:\.\.(\d+))?")


def transcripts(args: argparse.Namespace) -> int:
    run = open_run_dir(args.run_dir)
    where = Where(
        task=args.task,
        steps=steps_of(args.step) if args.step else None,
        success=False if args.failed else None,
        purpose="validate" if args.validation else None,
        trajectory=args.trajectory,
    )
    notes: list[str] = []
    found = _chosen(read(run, where, notes.append), args)
    shown = _show_json(run, found, notes) if args.json else _show(found)
    for text in dict.fromkeys(notes):
        print(f"note: {text}", file=sys.stderr)
    if not shown:
        print(_why_none(run, where), file=sys.stderr)
    return ExitCode.OK


def steps_of(text: str) -> tuple[int, int]:
    """
    >>> steps_of("10..20"), steps_of("7")
    ((10, 20), (7, 7))
    """
    found = _RANGE.fullmatch(text)
    if found is None:
        raise UserError(f"--step {text} is not a step or a range", "write e.g. --step 10..20")
    first = int(found[1])
    return first, int(found[2]) if found[2] else first


def _chosen(plays: Iterator[Play], args: argparse.Namespace) -> Iterable[Play]:
    """The newest, best or worst; as JSON all of them, unless a limit is given."""
    limit = args.limit
    if args.best or args.worst:
        return extremes(plays, limit or SHOWN, best=args.best)
    if args.json and not limit:
        return plays
    return deque(plays, limit or SHOWN)


def _show_json(run: RunDir, plays: Iterable[Play], notes: list[str]) -> int:
    """Advantages are looked up for a thousand plays at a time, so that any number of plays fits into memory."""
    encoder = msgspec.json.Encoder()
    shown = 0
    for part in _parts(plays, 1000):
        for play in with_advantages(run, part, notes.append):
            sys.stdout.buffer.write(encoder.encode(play) + b"\n")
            shown += 1
    return shown


def _parts(plays: Iterable[Play], size: int) -> Iterator[list[Play]]:
    part: list[Play] = []
    for play in plays:
        part.append(play)
        if len(part) == size:
            yield part
            part = []
    yield part


def _show(plays: Iterable[Play]) -> int:
    shown = 0
    for play in plays:
        print("\n".join(as_text(play)), end="\n\n")
        shown += 1
    return shown


def as_text(play: Play) -> list[str]:
    where = f"validation of version {play.validation}" if play.validation is not None else _trained(play)
    result = "success" if play.success else "failed"
    end = "a limit" if play.stop == "limit" else "the environment"
    lines = [
        f"== {play.trajectory}  {play.task}, seed {play.seed}: reward {play.reward:g}, {result}",
        f"   {where}; {play.turns} turns, {play.sampled_tokens} of {play.tokens} tokens sampled under versions "
        f"{play.first_version} to {play.last_version}; ended by {end}",
        f"   policy {play.policy_s:.2f} s, environment {play.reset_s + play.env_s:.2f} s, reward {play.reward_s:.2f} s",
    ]
    if play.outcome:
        lines.append(f"   outcome: {msgspec.json.encode(play.outcome).decode()}")
    for message in play.messages:
        mark = ">" if message["role"] == "user" else "<"
        lines += [f"{mark} {text}" for text in message["content"].splitlines() or [""]]
    return lines


def _trained(play: Play) -> str:
    return "not trained" if play.step is None else f"trained in step {play.step}"


def _why_none(run: RunDir, where: Where) -> str:
    if where == Where():
        return f"{run.path} has no transcripts yet; observe.transcripts says which share is kept"
    return "no transcript matches; call it without options to see the newest"
