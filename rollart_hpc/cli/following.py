"""Shows a run until it ends, for `submit --wait` and `status -f`, then how it ended and what it used."""

from __future__ import annotations

import sys

from rollart_hpc.cli.screen import LiveScreen, summary
from rollart_hpc.cli.usage import usage_lines
from rollart_hpc.errors import command_line
from rollart_hpc.launch.follow import follow
from rollart_hpc.launch.launcher import Launcher
from rollart_hpc.rundir import RunDir


def follow_to_the_end(run: RunDir, launcher: Launcher, quiet: bool = False) -> int:
    """Returns the exit code of the run. Ctrl-C ends only this."""
    watch = launcher.watch(run)
    try:
        with LiveScreen(run, quiet=quiet) as screen:
            status = follow(watch, screen)
    except KeyboardInterrupt:
        print(f"the run goes on; end it with: {command_line('cancel', run.path)}", file=sys.stderr)
        raise
    launcher.account(status)
    print("\n".join([*summary(status), *(f"  {line}" for line in usage_lines(status))]))
    if status.reason and status.state.can_resume:
        print(f"  {status.reason}")
    if run.report.exists():
        print(f"report: {run.report}")
    if status.state.can_resume:
        print(f"resume it with: {command_line('resume', run.path)}")
    return watch.exit_code(status)
