"""Keys that say as how many jobs a run is submitted. Owns their defaults and rules."""

from __future__ import annotations

from dataclasses import dataclass

from rollart_hpc.config.fields import key


@dataclass
class LaunchConfig:
    """Ignored on one machine."""

    mode: str = key(
        "het",
        "how the run gets its nodes on a cluster",
        choices={
            "het": "one heterogeneous job: all nodes start together",
            "jobs": "a job for the controller, which submits one for the trainer and others for engines: each starts "
            "when it can, and the run goes on when engines come and go",
        },
        rule="jobs needs submit_from_compute of the site, and weights.collective other than mpi",
    )
    engine_jobs: str = key(
        "node",
        "with mode: jobs, which engines share a job",
        choices={"node": "those of one node", "class": "all of one hardware class"},
    )
    wait_s: float = key(
        120.0,
        "seconds that the nodes of other jobs wait for the next supervisor after theirs has ended; then their jobs end",
        low=0,
    )
