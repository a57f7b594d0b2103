"""Following a run on a cluster from outside until it has ended. Owns what is said on the way; ends nothing."""

from __future__ import annotations

import time
from typing import Any, Protocol

from rollart_hpc.errors import EXIT_DRAINED, EXIT_ENVIRONMENT, RollartError
from rollart_hpc.files import read_json
from rollart_hpc.launch.slurm.commands import Slurm
from rollart_hpc.launch.slurm.queue import Queue
from rollart_hpc.launch.slurm.state import StateWatch, job_state
from rollart_hpc.rundir import RunDir

LOOK_EVERY_S = 1.0
_EXITS = {"finished": 0, "drained": EXIT_DRAINED, "cancelled": EXIT_DRAINED}
_OVER = (*_EXITS, "failed", "killed")


class Screen(Protocol):
    def say(self, text: str) -> None: ...
    def show(self, status: dict[str, Any]) -> None: ...


def follow(run: RunDir, job_id: int, slurm: Slurm, screen: Screen) -> int:
    """Returns the exit code of the run."""
    queue, watch, said = Queue(run), StateWatch(), ""
    while True:
        status = read_json(run.status)
        if status:
            screen.show(status)
        now = job_state(run, queue)
        is_over = watch.is_stable(now.state) and now.state in _OVER and all(row.is_over for row in now.rows)
        text = f"{now.state or 'running'}{': ' if now.reason else ''}{now.reason}"
        if text != said:
            said = text
            screen.say(f"job {job_id}: {text}")
        if is_over:
            return _EXITS[now.state] if now.state in _EXITS else _code_of_job(slurm, job_id)
        time.sleep(LOOK_EVERY_S)


def _code_of_job(slurm: Slurm, job_id: int) -> int:
    """Of a job that failed, if Slurm still knows."""
    try:
        rows = slurm.records("show", "job", str(job_id))
        return int(rows[0].get("ExitCode", "0:0").split(":")[0]) or EXIT_ENVIRONMENT
    except (RollartError, IndexError, ValueError):
        return EXIT_ENVIRONMENT
