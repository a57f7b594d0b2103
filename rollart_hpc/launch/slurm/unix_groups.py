"""Which partitions this user may use according to Unix groups. Limits are elsewhere."""

from __future__ import annotations

import grp
import os
import pwd

from rollart_hpc.launch.slurm.inventory import Partition

_ANYBODY = ("", "ALL", "(null)", "N/A")


def is_open(partition: Partition) -> bool:
    allowed = partition.allow_groups
    return os.geteuid() == 0 or allowed in _ANYBODY or bool(own_groups() & set(allowed.split(",")))


def own_groups() -> set[str]:
    """Names of this user's groups; the number of a group without a name."""
    name = pwd.getpwuid(os.geteuid()).pw_name
    found = set()
    for gid in os.getgrouplist(name, os.getegid()):
        try:
            found.add(grp.getgrgid(gid).gr_name)
        except KeyError:
            found.add(str(gid))
    return found
