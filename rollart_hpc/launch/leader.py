"""A launcher of several processes (mpiexec) under the supervisor: it ends with the supervisor, its processes with it.

    python -m rollart_hpc.launch.leader COMMAND...

mpiexec gives every process a session of its own and leaves them running when it is killed. So this process ties itself
to the supervisor, tells the processes whom to watch, and becomes the launcher.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from rollart_hpc.errors import SiteError
from rollart_hpc.processes.lifetime import LEADER_VARIABLE, end_with_parent


def find_mpiexec() -> str:
    """The one of this Python's environment, else the one on the PATH."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if not found:
        raise SiteError(
            "weights.collective=mpi needs mpiexec, which is not there", "pip install mpich, or weights.collective=gloo"
        )
    return found


def main(command: list[str]) -> None:
    end_with_parent()
    os.environ[LEADER_VARIABLE] = str(os.getpid())
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
