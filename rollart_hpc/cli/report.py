"""`report`: the pictures of a run and its timeline, made from what it wrote down."""

from __future__ import annotations

import argparse
from pathlib import Path

from rollart_hpc.cli.status import read_status
from rollart_hpc.observe import perfetto
from rollart_hpc.observe import report as observe_report
from rollart_hpc.rundir import RunDir, open_run_dir


def report(args: argparse.Namespace) -> int:
    run = open_run_dir(args.run_dir)
    print(f"report: {write_report(run)}\ntrace: {run.trace}")
    return 0


def write_report(run: RunDir) -> Path:
    """report.html and trace.json; returns the former."""
    perfetto.merge((run.traces(attempt) for attempt in run.attempt_numbers()), run.trace)
    return observe_report.write_report(run.path, read_status(run)["state"])
