"""Runs inside the job of an elastic worker: joins the run, scores, and leaves when idle."""

from __future__ import annotations

import os
import subprocess

from rollart_hpc.files import FILE_MODE
from rollart_hpc.launch.command import environment, python
from rollart_hpc.launch.slurm.commands import clean_environment
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import ExitCode


def work(run_dir: str, idle_s: float, live_s: float) -> None:
    """Raises if the worker failed, so that Slurm marks the job as failed. The end of the run is not a failure."""
    run = RunDir(run_dir)
    name = f"reward-job-{os.environ.get('SLURM_JOB_ID', os.getpid())}"
    command = python("-m", "rollart_hpc.cli", "join", run_dir, "reward", f"--name={name}")
    command += [f"--idle-s={idle_s}", f"--live-s={live_s}"]
    log = os.open(run.log(run.last_attempt(), name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, FILE_MODE)
    try:
        variables = clean_environment(environment())
        code = subprocess.call(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=variables)
    finally:
        os.close(log)
    if code not in (0, ExitCode.USER):
        raise RuntimeError(f"{name} ended with exit code {code}, see its log in {run.latest}/logs")
