"""The batch script of a job that holds only nodes for the run: engines, or the trainer. Its agents find the supervisor.

Slurm signals the agents before the job's time limit, so that the turns of engines go elsewhere and the trainer's
checkpoint is saved.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import replace

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import Options, SiteConfig
from rollart_hpc.launch.plan import Component, Plan
from rollart_hpc.launch.slurm.agent_command import Inside, agent_command, all_of_the_nodes, srun
from rollart_hpc.launch.slurm.script import directives, fill, job_name, of_the_script, satellite_name, setup_lines
from rollart_hpc.rundir import RunDir

LEAVE_S = 60  # seconds before its time limit at which a job of engines is warned: Slurm is up to a minute late


def render_satellite(
    component: Component, plan: Plan, config: RunConfig, site: SiteConfig, run: RunDir, avoid: Iterable[str] = ()
) -> str:
    """`avoid`: nodes to exclude, in addition to those of the site."""
    own, options = site.classes[component.hardware], site.options(component.hardware)
    excluded = ",".join(dict.fromkeys([host for host in (options.exclude, *avoid) if host]))
    classes = {**site.classes, component.hardware: replace(own, exclude=excluded)}
    has_trainer = any(proc.role == "trainer" for proc in component.procs)
    warned_s = config.job.signal_s if has_trainer else min(config.job.signal_s, LEAVE_S)
    return fill(
        "satellite.sh",
        title=f"{config.name} on site {site.name}: {', '.join(component.nodes)} for {run.path}",
        directives=directives(
            component,
            satellite_name(job_name(config, run), component.job),
            component.minutes or plan.time_minutes,
            replace(config, job=replace(config.job, dependency="")),  # that was for the run's own job
            replace(site, classes=classes),
            [("signal", f"TERM@{warned_s}"), *of_the_script(options, run)],
        ),
        setup="\n".join(setup_lines(site, options)),
        command="\n".join(_commands(component, config, site, run, options)),
    )


def _commands(
    component: Component, config: RunConfig, site: SiteConfig, run: RunDir, options: Options
) -> Iterable[str]:
    told = (f"--nodes={','.join(component.nodes)}", f"--wait-s={config.launch.wait_s:g}")
    within = Inside(run, config, site)
    agent = within.command(component, agent_command(run, config, component, component.procs, *told))
    step = [*srun(run, component, len(component.nodes), "agents"), *all_of_the_nodes(component, site)]
    step += within.srun_options(component)
    command = shlex.join([*step, *agent])
    if not options.epilogue:
        return [f"exec {command}"]
    after = [*srun(run, component, len(component.nodes), "epilogue"), "--cpus-per-task=1", "--gres=none"]
    return [command, "code=$?", shlex.join([*after, "/bin/bash", "-l", "-c", options.epilogue]), "exit $code"]
