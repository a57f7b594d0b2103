"""A supervisor over fake roles, as a process of its own: `python drive.py RUN_DIR`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rollart_hpc.config.resolved import read_resolved
from rollart_hpc.errors import RollartError
from rollart_hpc.launch import crew, supervisor
from rollart_hpc.launch.place import LocalPlace
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.process import Order
from rollart_hpc.observe.status import Status
from rollart_hpc.rundir import RunDir

FAKE = str(Path(__file__).with_name("fake_role.py"))
real_command = crew.role_command


def fake_command(order: Order, run: RunDir, **rest: Any) -> list[str]:
    interpreter, safe, _, _, *arguments = real_command(order, run, **rest)
    return [interpreter, safe, FAKE, order.proc.role, *arguments]


class Lines:
    def say(self, text: str) -> None:
        print(text, flush=True)

    def show(self, status: Status) -> None:
        pass


class Limited(LocalPlace):
    """A place where a run has the time in RUN_DIR/save_s for its checkpoint, if there is such a file.

    With RUN_DIR/closing it is about to kill every process.
    """

    def save_s(self, usual_s: float) -> float:
        path = Path(sys.argv[1]) / "save_s"
        return float(path.read_text()) if path.exists() else usual_s

    def is_closing(self) -> bool:
        return (Path(sys.argv[1]) / "closing").exists()


if __name__ == "__main__":
    crew.role_command = fake_command  # type: ignore[assignment]
    supervisor.TICK_S = 0.1
    supervisor.LEAVE_S = 60.0  # the machine may be busy; who has left is not waited for
    run = RunDir(sys.argv[1])
    config = read_resolved(run.config)
    try:
        print(supervisor.Supervisor(run, config, make_plan(config), Lines(), Limited()).supervise())
    except RollartError as error:
        print(error)
        sys.exit(error.exit_code)
