"""Runs mpiexec so that it ends with the supervisor, and its processes end with it.

    python -m rollart_hpc.launch.leader COMMAND...

mpiexec puts every process into its own session and leaves it running when mpiexec is killed. So this process asks the
kernel to end it with the supervisor, tells the processes to watch its pid, and execs mpiexec.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from rollart_hpc.errors import SiteError
from rollart_hpc.processes.lifetime import LEADER_VARIABLE, end_with_parent


def find_mpiexec() -> str:
    """mpiexec of this Python's environment, else the one on the PATH."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if not found:
        raise SiteError(
            "weights.collective=mpi needs mpiexec, which is not installed",
            "pip install mpich, or set weights.collective=gloo",
        )
    return found


def main(command: list[str]) -> None:
    end_with_parent()
    os.environ[LEADER_VARIABLE] = str(os.getpid())
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
