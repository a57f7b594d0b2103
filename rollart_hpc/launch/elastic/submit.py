"""Submits elastic reward workers. `python -m rollart_hpc.launch.elastic.submit --run-dir DIR --count N`

It is a separate process for two reasons: submitit calls sbatch with its own environment, which must not be that of a
job; and sbatch may be slow. Prints one job id per line.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from typing import Any

from rollart_hpc.config.classes import homes_of
from rollart_hpc.config.resolved import read_resolved, read_site
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.files import make_directory
from rollart_hpc.launch.elastic.reward_job import work
from rollart_hpc.launch.slurm.script import elastic_name, free_options, job_name, permissions, setup_lines
from rollart_hpc.rundir import RunDir

MARGIN_S = 60  # seconds before its job's time limit at which a worker leaves


def parameters(config: RunConfig, site: SiteConfig, run: RunDir) -> dict[str, Any]:
    """submitit's parameters for these jobs."""
    name = homes_of(config, site).reward
    options, elastic = site.options(name), config.reward.elastic
    limit = site.classes[name].max_minutes
    further = {key: True if value is None else value for key, value in permissions(config, options)}
    further |= {key: True if value is None else value for key, value in free_options({**options.sbatch})}
    further |= {"propagate": "NONE", "no-requeue": True}
    further.pop("dependency", None)  # it is for the run's own job
    return {
        "job_name": elastic_name(job_name(config, run)),
        "partition": site.classes[name].partition,
        "time": min(elastic.time_minutes, limit) if limit else elastic.time_minutes,
        "nodes": 1,
        "ntasks_per_node": 1,
        "cpus_per_task": config.reward.cpus,
        "mem": f"{max(1, round(config.reward.memory_gb * 1024))}M" if site.classes[name].memory_gb else None,
        "setup": list(setup_lines(site, options)),
        "stderr_to_stdout": True,
        "use_srun": False,
        "wckey": None,
        "additional_parameters": further,
    }


def main() -> int:
    from submitit import SlurmExecutor

    parser = argparse.ArgumentParser(prog="python -m rollart_hpc.launch.elastic.submit", allow_abbrev=False)
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--count", type=int, default=1)
    args = parser.parse_args()
    os.umask(0o077)
    run = RunDir(args.run_dir)
    config, site = read_resolved(run.config), read_site(run.site)
    chosen = parameters(config, site, run)
    interpreter = site.options(homes_of(config, site).reward).python or sys.executable
    executor = SlurmExecutor(make_directory(run.elastic), max_num_timeout=0, python=f"{shlex.quote(interpreter)} -P")
    executor.update_parameters(**chosen)
    live_s = max(chosen["time"] * 60 - MARGIN_S, 30)
    for _ in range(args.count):
        job = executor.submit(work, str(run.path), config.reward.elastic.idle_s, live_s)
        print(job.job_id, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
