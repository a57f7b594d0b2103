"""The checks of a whole site, in order: first those that need no job, then one job on a node of every class.

The command line comes in here, so it need not know what kind of cluster it is.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rollart_hpc.config.launchers import is_cluster
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.doctor.quick import need_readiness, quick_findings
from rollart_hpc.doctor.scope import Scope
from rollart_hpc.doctor.submit import ask_nodes
from rollart_hpc.errors import UserError
from rollart_hpc.launch.finding import Finding, has_failed
from rollart_hpc.launch.slurm.commands import Slurm

Say = Callable[[str], None]


def examine(
    site: SiteConfig,
    scope: Scope,
    root: Path,
    show: Callable[[list[Finding]], None],
    say: Say,
    *,
    wait_s: float | None,
) -> None:
    """Calls `show` with findings as they come. `wait_s`: maximum time of the job in the queue; None = no job."""
    need_cluster(site)
    slurm = Slurm()
    found = quick_findings(site, scope, root, slurm)
    show(found)
    if has_failed(found):
        say("no job was submitted: fix the failed checks first")
    elif wait_s is not None:
        show(ask_nodes(site, scope, root, slurm, wait_s, say))


def need_ready(site: SiteConfig, root: Path) -> None:
    """Raises if no run can be submitted from here. Quick."""
    need_readiness(site, root, Slurm())


def need_cluster(site: SiteConfig) -> None:
    if not is_cluster(site.launcher):
        raise UserError(
            f"site {site.name} is one machine, not a cluster", "name the site file of a cluster with --site"
        )
