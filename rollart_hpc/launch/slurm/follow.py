"""Following a job from outside until it has ended. Owns how often Slurm is asked; ends nothing.

Progress comes from the run directory, whether the job lives from Slurm: one call now and then, ever less often while
nothing changes or nobody answers.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple, Protocol

from rollart_hpc.config.process import EXIT_DRAINED
from rollart_hpc.config.rundir import RunDir
from rollart_hpc.errors import EXIT_ENVIRONMENT, RollartError
from rollart_hpc.files import read_json
from rollart_hpc.launch.ownership import read_ownership
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError

SHOW_EVERY_S = 1.0
ASK_FIRST_S, ASK_LONGEST_S = 2.0, 15.0
OVER = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT",
)  # fmt: skip
_EXITS = {"finished": 0, "drained": EXIT_DRAINED, "cancelled": EXIT_DRAINED, "requeued": EXIT_DRAINED}


class Screen(Protocol):
    def say(self, text: str) -> None: ...
    def show(self, status: dict[str, Any]) -> None: ...


class Glance(NamedTuple):
    state: str  # "" = Slurm has forgotten the job
    reason: str


def follow(run: RunDir, job_id: int, slurm: Slurm, screen: Screen) -> int:
    """Until the job has ended; returns the exit code of the run."""
    last = Glance("", "")
    pause_s, next_ask_s, misses = ASK_FIRST_S, 0.0, 0
    while True:
        status = read_json(run.status)
        if status:
            screen.show(status)
        if time.monotonic() >= next_ask_s:
            glance = _glance(slurm, job_id, screen, misses)
            misses = misses + 1 if glance is None else 0
            if glance is not None and glance.state in (*OVER, ""):
                return _exit_code(run, glance, slurm, job_id, screen)
            if glance is not None and glance != last:
                screen.say(f"job {job_id}: {_words(glance)}")
                last, pause_s = glance, ASK_FIRST_S
            else:
                pause_s = min(ASK_LONGEST_S, 1.5 * pause_s)
            next_ask_s = time.monotonic() + pause_s
        time.sleep(SHOW_EVERY_S)


def _glance(slurm: Slurm, job_id: int, screen: Screen, misses: int) -> Glance | None:
    """None: nobody answered."""
    try:
        rows = slurm.table("squeue", {"state": "%T", "reason": "%r"}, f"--jobs={job_id}", "--states=all")
    except SlurmError as error:
        if "invalid job id" in error.stderr.lower():
            return Glance("", "")
        if not misses:
            screen.say(f"{error.what}; the job goes on, asking again")
        return None
    return Glance(rows[0]["state"], rows[0]["reason"]) if rows else Glance("", "")


def _words(glance: Glance) -> str:
    said = "" if glance.reason in ("None", "") or glance.state == "RUNNING" else f" ({glance.reason})"
    return f"{glance.state.lower()}{said}"


def _exit_code(run: RunDir, glance: Glance, slurm: Slurm, job_id: int, screen: Screen) -> int:
    """The supervisor's, if it came to an end; else that of the job."""
    owner = read_ownership(run)
    state = str(owner.get("state", ""))
    if state == "finished":
        return 0
    screen.say(f"job {job_id}: {_words(glance) if glance.state else 'no longer known to Slurm'}")
    if owner.get("reason"):
        screen.say(f"{state}: {owner['reason']}")
    return _code_of_job(slurm, job_id) or _EXITS.get(state, EXIT_ENVIRONMENT)


def _code_of_job(slurm: Slurm, job_id: int) -> int:
    """0 if it ended by a signal, well, or so long ago that nobody knows."""
    try:
        rows = slurm.records("show", "job", str(job_id))
        return int(rows[0].get("ExitCode", "0:0").split(":")[0])
    except (RollartError, IndexError, ValueError):
        return 0
