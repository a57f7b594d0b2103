"""The cluster that this host belongs to, as it is now. The command line comes in here."""

from __future__ import annotations

from rollart_hpc.launch.slurm.commands import Slurm
from rollart_hpc.launch.slurm.inventory import Inventory, read_inventory


def live_inventory() -> Inventory:
    return read_inventory(Slurm())
