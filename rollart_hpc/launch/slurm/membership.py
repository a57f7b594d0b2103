"""Which partitions this user may use, by groups. Owns that question; limits are elsewhere."""

from __future__ import annotations

import grp
import os
import pwd

from rollart_hpc.launch.slurm.inventory import Partition

_ANYBODY = ("", "ALL", "(null)", "N/A")


def is_open(partition: Partition) -> bool:
    return os.geteuid() == 0 or partition.allow_groups in _ANYBODY or bool(_groups() & {*_names(partition)})


def _names(partition: Partition) -> list[str]:
    return partition.allow_groups.split(",")


def _groups() -> set[str]:
    name = pwd.getpwuid(os.geteuid()).pw_name
    found = set()
    for gid in os.getgrouplist(name, os.getegid()):
        try:
            found.add(grp.getgrgid(gid).gr_name)
        except KeyError:
            continue
    return found
