"""RUN_DIR/model before any role starts: the user's directory, or a tiny model made in a process of its own."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from rollart_hpc.config.process import PARENT_VARIABLE
from rollart_hpc.config.rundir import RunDir
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import SiteError
from rollart_hpc.files import FILE_MODE, disk_errors, point
from rollart_hpc.launch.command import environment, python
from rollart_hpc.launch.failures import describe, last_error, quoted_tail

_MADE_BY = "rollart_hpc.trainers.base_model"


def prepare_model(run: RunDir, config: RunConfig, say: Callable[[str], None]) -> None:
    if run.model.is_dir():
        return  # a resumed run
    if config.model.kind == "directory":
        point(run.model, Path(config.model.path))
        return
    say("making the base model")
    began_s = time.monotonic()
    _make_tiny(run)
    say(f"base model made in {time.monotonic() - began_s:.0f} s")


def _make_tiny(run: RunDir) -> None:
    log = run.path / "base_model.log"
    with disk_errors(log):
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    try:
        # Its threads are its own business: nothing else of the run is alive yet.
        variables = environment(os.cpu_count() or 1) | {PARENT_VARIABLE: str(os.getpid())}
        command = python("-m", _MADE_BY, "--run-dir", str(run.path))
        code = subprocess.call(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=variables)
    finally:
        os.close(output)
    if code != 0 or not run.model.is_dir():
        said = last_error(log) or quoted_tail(log)
        raise SiteError(f"the base model could not be made ({describe(code)}): {said}", f"its log: {log}")
