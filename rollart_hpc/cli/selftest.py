"""`selftest`: does everything work on the hardware at hand? Prints a table and writes a file for an issue."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from typing import Any

import msgspec

from rollart_hpc.config.check import nearest
from rollart_hpc.errors import UserError
from rollart_hpc.files import disk_errors
from rollart_hpc.selftest.checks import CHECKS, Row, State, select
from rollart_hpc.selftest.run import facts, num_gpus, run_checks
from rollart_hpc.vocabulary import ExitCode


def selftest(args: argparse.Namespace) -> int:
    names = [check.name for check in CHECKS]
    for name in args.only:
        if name not in names:
            raise UserError(f"there is no check {name!r}", nearest(name, names))
    checks = select(args.only)
    rows = run_checks(checks, num_gpus(), lambda row: None if args.json else print(_line(row), flush=True))
    report = {"facts": facts(), "rows": rows}
    data = msgspec.json.format(msgspec.json.encode(report), indent=1)
    with disk_errors(args.output, "--output"):
        args.output.write_bytes(data + b"\n")
    if args.json:
        print(data.decode())
    counts = Counter(row.state for row in rows)
    told = ", ".join(f"{counts[state]} {state}" for state in State)
    print(f"{told}; {args.output} has the details: attach it to an issue", file=sys.stderr)
    return ExitCode.ENVIRONMENT if counts[State.FAILED] else ExitCode.OK


def _line(row: Row) -> str:
    told = row.detail or ", ".join(f"{name} {_short(value)}" for name, value in row.figures.items())
    return f"{row.state:8} {row.name:18} {row.seconds:5.0f} s  {row.shows}: {told}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return str(value) if isinstance(value, str | int) else "..."
