"""A real Slurm with virtual nodes on one machine, to try and to test this toolkit without a cluster.

Standard library only (with `launch.slurm.commands`, `files` and `errors`): `launchers/devcluster` runs it before
anything is installed.
"""
