"""`report`: writes report.html and trace.json from the files of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from rollart_hpc.launch.launcher import run_status
from rollart_hpc.observe import perfetto
from rollart_hpc.observe import report as observe_report
from rollart_hpc.rundir import RunDir, open_run_dir


def report(args: argparse.Namespace) -> int:
    run = open_run_dir(args.run_dir)
    print(f"report: {write_report(run)}\ntrace: {run.trace}")
    return 0


def write_report(run: RunDir) -> Path:
    """Writes report.html and trace.json; returns the path of the report."""
    perfetto.merge((run.traces(attempt) for attempt in run.attempt_numbers()), run.trace)
    return observe_report.write_report(run.path, run_status(run).state)
