"""A real Slurm with virtual nodes on one machine: how this toolkit is tried, and tested, without a cluster.

Standard library only (with `launch.slurm.commands`, `files` and `errors`): `launchers/devcluster` runs it before
anything is installed.
"""
