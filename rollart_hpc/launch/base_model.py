"""Prepares RUN_DIR/model before any role starts: copies the user's directory, or makes a tiny model in a subprocess."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.files import FILE_MODE, disk_errors, point
from rollart_hpc.launch.command import environment, python
from rollart_hpc.launch.failures import describe, last_error, quoted_tail
from rollart_hpc.launch.preloaded import ForkedProcess, NotPreloaded, Preloaded
from rollart_hpc.processes.lifetime import PARENT_VARIABLE
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import ExitCode

SAY_EVERY_S = 5.0
_MODULE = "rollart_hpc.trainers.base_model"
# The kernel ends it when this process dies, even by SIGKILL.
_MAKE = (
    "import runpy; from rollart_hpc.processes.lifetime import end_with_parent; end_with_parent();"
    f"runpy.run_module('{_MODULE}', run_name='__main__', alter_sys=True)"
)

Say = Callable[[str], None]


def prepare_model(run: RunDir, config: RunConfig, say: Say, preloaded: Preloaded | None = None) -> None:
    if run.model.is_dir():
        return  # a resumed run
    if config.model.kind == "directory":
        point(run.model, Path(config.model.path))
        return
    say("making the base model")
    began_s = time.monotonic()
    _make_tiny(run, say, preloaded)
    say(f"base model made in {time.monotonic() - began_s:.0f} s")


def _make_tiny(run: RunDir, say: Say, preloaded: Preloaded | None) -> None:
    log = run.base_model_log
    with disk_errors(log):
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, FILE_MODE)
    try:
        code = _run(["--run-dir", str(run.path)], output, say, preloaded)
    finally:
        os.close(output)
    if code != 0 or not run.model.is_dir():
        said = last_error(log) or quoted_tail(log)
        kind = UserError if code == ExitCode.USER else SiteError
        raise kind(f"could not make the base model ({describe(code)}): {said}", f"read its log: {log}")


def _run(arguments: list[str], log: int, say: Say, preloaded: Preloaded | None) -> int:
    """Its output goes to the log, and some lines of it to the user."""
    read, write = os.pipe()
    with open(read) as printed:
        try:
            process = _start(arguments, write, log, preloaded)
        finally:
            os.close(write)
        said_s = time.monotonic()
        try:
            for line in printed:
                os.write(log, line.encode())
                if time.monotonic() - said_s >= SAY_EVERY_S:
                    said_s = time.monotonic()
                    say(f"  {line.strip()}")
        except BaseException:  # Ctrl-C
            process.kill()
            process.wait()
            raise
    return process.wait()


def _start(
    arguments: list[str], stdout: int, stderr: int, preloaded: Preloaded | None
) -> ForkedProcess | subprocess.Popen[bytes]:
    # One thread: the model is tiny, and several threads that wait for each other are slow on a shared machine.
    variables = environment()
    if preloaded is not None:
        with suppress(NotPreloaded):
            return preloaded.fork(_MODULE, arguments, variables, stdout, stderr)
    return subprocess.Popen(
        python("-u", "-c", _MAKE, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        env=variables | {PARENT_VARIABLE: str(os.getpid())},
    )
