"""`run` and `resume`: start a supervised run and show its progress."""

from __future__ import annotations

import argparse
import logging
import sys

from rollart_hpc.cli.report import write_report
from rollart_hpc.cli.screen import LiveScreen, summary
from rollart_hpc.cli.submit import resume_job
from rollart_hpc.config.load import load_all
from rollart_hpc.errors import RollartError, UserError
from rollart_hpc.launch.local import resume_run, start_run
from rollart_hpc.launch.status import is_on_cluster, run_status
from rollart_hpc.launch.supervisor import Outcome
from rollart_hpc.rundir import RunDir, new_run_dir, open_run_dir
from rollart_hpc.vocabulary import ExitCode

# The supervisor's link may log warnings when the run ends; the exit code says what matters.
logging.getLogger("rollart_hpc").addHandler(logging.NullHandler())


def run(args: argparse.Namespace) -> int:
    loaded = load_all(args.run, args.overrides, args.site)
    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if loaded.site.launcher != "local":
        raise UserError(f"site {loaded.site.name} is a cluster", "use: rollart-hpc submit")
    directory = RunDir(args.run_dir) if args.run_dir else new_run_dir(loaded.config.name)
    screen = LiveScreen(directory, quiet=args.quiet)
    with screen:
        outcome = start_run(loaded.config, loaded.site, directory, screen)
    return _tell_end(directory, outcome)


def resume(args: argparse.Namespace) -> int:
    directory = open_run_dir(args.run_dir)
    if is_on_cluster(directory):
        return resume_job(directory)
    with LiveScreen(directory, quiet=args.quiet) as screen:
        outcome = resume_run(directory, screen)
    return _tell_end(directory, outcome)


def _tell_end(run: RunDir, outcome: Outcome) -> int:
    for line in summary(run_status(run)):
        print(line)
    try:
        print(f"report: {write_report(run)}")
    except RollartError as error:  # the run itself is fine
        print(f"no report: {error}", file=sys.stderr)
    if outcome.can_resume:
        print(f"ended early; resume it with: rollart-hpc resume {run.path}")
    return ExitCode.OK if outcome.exit_code is None else outcome.exit_code
