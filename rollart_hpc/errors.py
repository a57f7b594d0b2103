"""The errors a user may see. Each has an exit code, defined in `vocabulary`. Does not know what raises them.

A `RollartError` is printed without a traceback. Broken invariants are assertions, failed
trajectories are data (with a counted reason), dead processes are events: none of those belong here.
"""

from __future__ import annotations

import shlex

from rollart_hpc.vocabulary import ExitCode

PROGRAM = "rollart-hpc"
DETAIL_CHARS = 500  # maximum length of the error text of a failed trajectory


def command_line(*words: object) -> str:
    """A command to show to the user, quoted so that it can be pasted into a shell.

    >>> command_line("resume", "/data/my runs/a")
    "rollart-hpc resume '/data/my runs/a'"
    """
    return shlex.join([PROGRAM, *map(str, words)])


class RollartError(Exception):
    """What went wrong, and what to do next."""

    exit_code = ExitCode.ENVIRONMENT

    def __init__(self, what: str, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.what}\n  -> {self.fix}" if self.fix else self.what


class UserError(RollartError):
    """The request can't be carried out as written: bad config, missing file, existing directory."""

    exit_code = ExitCode.USER


class SiteError(RollartError):
    """The machine can't do it: disk full, no shared memory, corrupt checkpoint, a role that keeps dying."""

    exit_code = ExitCode.ENVIRONMENT


class DamagedError(SiteError):
    """A checkpoint whose files are proven to be damaged or missing. It is set aside, and the one before it counts."""


class ConfigError(UserError):
    """Every problem of a configuration at once, one line each."""

    def __init__(self, source: str, problems: list[str]) -> None:
        lines = "\n".join(f"  - {p}" for p in problems)
        count = f"{len(problems)} problem" + ("s" if len(problems) != 1 else "")
        fix = "correct them and run `rollart-hpc check` again; `rollart-hpc keys KEY` explains a key"
        super().__init__(f"{source}: {count}\n{lines}", fix)
        self.problems = problems
