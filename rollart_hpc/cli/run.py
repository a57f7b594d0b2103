"""`run` and `resume`: start a supervised run and show its progress; on a cluster, `resume` submits it."""

from __future__ import annotations

import argparse
import logging
import sys

from rollart_hpc.cli.plan import new_run, tell_loaded, tell_warnings
from rollart_hpc.cli.report import write_report
from rollart_hpc.cli.screen import LiveScreen, summary
from rollart_hpc.cli.submit import next_commands
from rollart_hpc.config.load import load_all
from rollart_hpc.errors import RollartError, UserError, command_line
from rollart_hpc.launch.changes import propose
from rollart_hpc.launch.launcher import Handed, launcher_of, launcher_of_run, run_status
from rollart_hpc.launch.supervisor import Outcome
from rollart_hpc.rundir import RunDir, open_run_dir
from rollart_hpc.vocabulary import ExitCode

# The supervisor's link may log warnings when the run ends; the exit code says what matters.
logging.getLogger("rollart_hpc").addHandler(logging.NullHandler())


def run(args: argparse.Namespace) -> int:
    loaded = load_all(args.run, args.overrides, args.site)
    tell_loaded(loaded)
    launcher = launcher_of(loaded.site)
    if launcher.is_cluster:
        raise UserError(f"site {loaded.site.name} is a cluster", "use: rollart-hpc submit")
    new = new_run(loaded, args.run_dir)
    with LiveScreen(new.run, quiet=args.quiet) as screen:
        result = launcher.start(new, screen)
    return tell(new.run, result)


def resume(args: argparse.Namespace) -> int:
    directory = open_run_dir(args.run_dir)
    launcher = launcher_of_run(directory)
    proposal = propose(directory, args.overrides)
    tell_warnings(proposal.warnings)
    with LiveScreen(directory, quiet=args.quiet) as screen:
        if proposal.change.keys:
            screen.say(proposal.change.as_text())
        result = launcher.resume(directory, proposal, screen)
    return tell(directory, result)


def tell(run: RunDir, result: Outcome | Handed) -> int:
    if isinstance(result, Handed):
        print(f"{result.title} submitted")
        next_commands(run)
        return ExitCode.OK
    return _tell_end(run, result)


def _tell_end(run: RunDir, outcome: Outcome) -> int:
    for line in summary(run_status(run)):
        print(line)
    try:
        print(f"report: {write_report(run)}")
    except RollartError as error:  # the run itself is fine
        print(f"no report: {error}", file=sys.stderr)
    if outcome.can_resume:
        print(f"ended early; resume it with: {command_line('resume', run.path)}")
    return ExitCode.OK if outcome.exit_code is None else outcome.exit_code
