"""`replay`: feeds the recorded events of a run to a fresh core, which must say what it said. Changes nothing."""

from __future__ import annotations

import argparse

import msgspec

from rollart_hpc.errors import UserError
from rollart_hpc.roles.recording import replay as replay_file
from rollart_hpc.rundir import open_run_dir


def replay(args: argparse.Namespace) -> int:
    run = open_run_dir(args.run_dir)
    recorded = [attempt for attempt in run.attempt_numbers() if run.recording(attempt).exists()]
    attempts = recorded if args.attempt is None else [args.attempt]
    if not attempts:
        raise UserError(f"{run.path} has no recording", "record a run with observe.record_bytes=1000000000")
    found = [replay_file(run.recording(attempt)) for attempt in attempts]
    if args.json:
        print(msgspec.json.format(msgspec.json.encode({"attempts": found}), indent=1).decode())
        return 0
    for each in found:
        until = "; its limit was reached, and the run went on" if each.is_full else ""
        print(
            f"attempt {each.attempt}: {each.events} events, {each.commands} identical commands, up to version "
            f"{each.version}{until}"
        )
    return 0
