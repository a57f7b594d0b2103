"""`report`: the pictures of a run, made from what it wrote down."""

from __future__ import annotations

import argparse
from pathlib import Path

from rollart_hpc.config.rundir import RunDir, open_run_dir


def report(args: argparse.Namespace) -> int:
    print(write_report(open_run_dir(args.run_dir)))
    return 0


def write_report(run: RunDir) -> Path:
    return run.report
