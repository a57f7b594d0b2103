"""The launchers that a site file can name. Owns the list; what a launcher does is in `rollart_hpc.launch`.

To add one: a folder `launch/NAME` with a class that implements `launch.launcher.Launcher`, and a line here.
"""

from __future__ import annotations

from typing import NamedTuple


class Declared(NamedTuple):
    summary: str
    path: str  # module:class, imported when a command needs it
    is_cluster: bool  # its nodes belong to the hardware classes of the site file


LAUNCHERS = {
    "local": Declared("as processes of this machine", "rollart_hpc.launch.local:LocalLauncher", False),
    "slurm": Declared("by agents on the nodes of a Slurm job", "rollart_hpc.launch.slurm.launcher:SlurmLauncher", True),
}


def is_cluster(launcher: str) -> bool:
    return LAUNCHERS[launcher].is_cluster
