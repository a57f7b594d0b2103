"""Calls Slurm's commands. Owns their environment, timeouts and output formats.

    slurm = Slurm()
    slurm.run("scancel", "12")                                       # SlurmError if it fails
    slurm.table("squeue", {"id": "%i", "state": "%T"}, "-j", "12")   # [{"id": "12", "state": "RUNNING"}]
    slurm.records("show", "partition")                               # scontrol: [{"PartitionName": "cpu", ...}]

Fields are always named, because defaults differ between sites and `--json` differs between versions. Every call has a
timeout, because a client waits for minutes when slurmctld is down. Calls are paced, because slurmctld serves everyone
(and since 23.02 may limit each user). Knows nothing about runs. Standard library only:
the development cluster uses it before anything is installed.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollart_hpc.errors import SiteError

LIMIT_S = 30.0
CALLS_PER_S, BURST = 5.0, 10
SEPARATOR = "\x1f"  # never part of a name
_FOREIGN = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_")
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")  # how to reach the cluster
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w/:]*)=")


class Pace:
    """At most `burst` calls at once and `per_s` calls a second after that, from all threads together."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._interval_s, self._burst = 1 / per_s, burst
        self._lock = threading.Lock()
        self._next_s = -math.inf  # when a call may start if the burst is used up

    def wait(self) -> None:
        with self._lock:
            now_s = time.monotonic()
            self._next_s = max(self._next_s, now_s - self._burst * self._interval_s) + self._interval_s
            wait_s = self._next_s - now_s
        if wait_s > 1e-3:
            time.sleep(wait_s)


PACE = Pace(CALLS_PER_S, BURST)  # of this process


class SlurmError(SiteError):
    """A Slurm command failed. `code`: its exit code, `stderr`: its error output."""

    def __init__(self, what: str, fix: str = "", *, code: int = 1, stderr: str = "") -> None:
        super().__init__(what, fix)
        self.code, self.stderr = code, stderr


class SlurmSilent(SlurmError):
    """The command timed out; whether it took effect is unknown."""


@dataclass(frozen=True)
class Answer:
    code: int
    stdout: str
    stderr: str


def clean_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Without variables by which a job or the user changes Slurm's defaults; those that locate the cluster stay."""
    source = os.environ if environment is None else environment
    return {name: value for name, value in source.items() if name in _KEPT or not name.startswith(_FOREIGN)}


class Slurm:
    """`conf`: the cluster's slurm.conf if not the default one. `prefix`: put before every command."""

    def __init__(self, conf: Path | None = None, *, limit_s: float = LIMIT_S, prefix: Sequence[str] = ()) -> None:
        self._limit_s = limit_s
        self._prefix = tuple(prefix)
        self._conf = {} if conf is None else {"SLURM_CONF": str(conf)}

    def run(self, *command: str, limit_s: float | None = None, stdin: str = "", cwd: Path | None = None) -> str:
        """Run a command and return its output. Raises if it fails."""
        answer = self.ask(*command, limit_s=limit_s, stdin=stdin, cwd=cwd)
        if answer.code != 0:
            said = answer.stderr.strip() or answer.stdout.strip() or f"exit code {answer.code}"
            raise SlurmError(f"{command[0]} failed: {said}", code=answer.code, stderr=answer.stderr)
        return answer.stdout

    def ask(self, *command: str, limit_s: float | None = None, stdin: str = "", cwd: Path | None = None) -> Answer:
        """Run a command that may fail."""
        limit_s = limit_s or self._limit_s
        PACE.wait()
        try:
            done = subprocess.run(
                [*self._prefix, *command],
                capture_output=True, text=True, errors="replace", check=False,
                timeout=limit_s, input=stdin, cwd=cwd, env={**clean_environment(), **self._conf},
            )  # fmt: skip
        except FileNotFoundError:
            raise SlurmError(
                f"command {command[0]} not found",
                "run this on a login node of the cluster (some need `module load slurm`), "
                "or try a development cluster: launchers/devcluster up",
                code=127,
            ) from None
        except subprocess.TimeoutExpired:
            raise SlurmSilent(
                f"{command[0]} did not answer within {limit_s:g} s", "check that slurmctld is up: scontrol ping"
            ) from None
        return Answer(done.returncode, done.stdout, done.stderr)

    def table(self, command: str, fields: Mapping[str, str], *options: str) -> list[dict[str, str]]:
        """squeue or sinfo: one row per line. `fields` maps your names to their % fields."""
        text = self.run(command, "--noheader", f"--format={SEPARATOR.join(fields.values())}", *options)
        return _rows(text, list(fields))

    def accounts(self, command: str, fields: Sequence[str], *options: str) -> list[dict[str, str]]:
        """sacct or sacctmgr: one row per line, keyed by their field names."""
        named, separator = ",".join(fields), SEPARATOR
        form = [f"--format={named}", f"--delimiter={separator}"]
        if command == "sacctmgr":  # it has no option for the separator, and its names never contain it
            form, separator = [f"format={named}"], "|"
        text = self.run(command, *options, *form, "--noheader", "--parsable2")
        return _rows(text, list(fields), separator)

    def records(self, *arguments: str) -> list[dict[str, str]]:
        """scontrol show: one record per line."""
        return [record(line) for line in self.run("scontrol", "--oneliner", *arguments).splitlines() if line.strip()]

    def settings(self) -> dict[str, str]:
        """The configuration that slurmctld uses."""
        lines = self.run("scontrol", "show", "config").splitlines()
        pairs = (line.split("=", 1) for line in lines if "=" in line)
        return {name.strip(): value.strip() for name, value in pairs}


def record(line: str) -> dict[str, str]:
    """Parses a line of `scontrol --oneliner`. A value may contain spaces; it ends where the next name starts.

    >>> record("NodeName=n1 OS=Linux 6.1 #1 State=IDLE")
    {'NodeName': 'n1', 'OS': 'Linux 6.1 #1', 'State': 'IDLE'}
    """
    marks = list(_FIELD.finditer(line))
    ends = [mark.start() for mark in marks[1:]] + [len(line)]
    return {mark[1]: line[mark.end() : end].strip() for mark, end in zip(marks, ends)}


def is_installed(command: str = "sbatch") -> bool:
    return shutil.which(command) is not None


def _rows(text: str, names: list[str], separator: str = SEPARATOR) -> list[dict[str, str]]:
    lines = (line.split(separator) for line in text.splitlines() if line.strip())
    return [dict(zip(names, (value.strip() for value in line), strict=True)) for line in lines]
