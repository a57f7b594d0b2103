"""The batch script of a run. Turns a plan into sbatch options; the text around them is slurm/job.sh.

Every option is written for every component, because Slurm inherits only some from the first component. Options of the
batch script itself (output, signal, directory, mail) are only in the first component, where the script runs.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from string import Template
from typing import Any

import xxhash

import rollart_hpc
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import Options, SiteConfig
from rollart_hpc.errors import SiteError
from rollart_hpc.launch.plan import Component, Plan
from rollart_hpc.launch.summary import clock, cost_line
from rollart_hpc.rundir import RunDir

SUPERVISOR = "rollart_hpc.launch.slurm.job"  # what the batch script execs
_PACKAGE = Path(rollart_hpc.__file__).resolve().parent
_TEMPLATES = (_PACKAGE / "slurm", _PACKAGE.parent / "slurm")  # installed, checkout
_OF_BATCH = ("batch", "export-file", "ignore-pbs", "input", "kill-on-invalid-dep")  # options that salloc lacks
_BLANK_LINES = re.compile(r"\n{3,}")

Option = tuple[str, str | None]  # None: a flag


def job_name(config: RunConfig, run: RunDir) -> str:
    """Shared by all jobs of a run and by no other run, so that jobs can be found by name."""
    return f"rollart-{config.name}-{xxhash.xxh3_64_hexdigest(str(run.path).encode())[:8]}"


def elastic_name(name: str) -> str:
    """The name of the jobs of elastic workers. `name`: that of the run's own job."""
    return f"{name}-reward"


def satellite_name(name: str, job: str) -> str:
    """The name of a job of its own (`Component.job`). `name`: that of the run's own job."""
    return f"{name}-{job}"


def render_script(plan: Plan, config: RunConfig, site: SiteConfig, run: RunDir) -> str:
    components = [_of_component(component, plan, config, site, run) for component in plan.home]
    first = site.options(plan.components[0].hardware)
    return fill(
        "job.sh",
        title=f"{config.name} on site {site.name}: {_one_line(cost_line(plan))}",
        directives="\n#SBATCH hetjob\n".join(components),
        setup="\n".join(setup_lines(site, first)),
        command=shlex.join([first.python or sys.executable, "-P", "-m", SUPERVISOR, "--run-dir", str(run.path)]),
    )


def fill(template: str, **values: str) -> str:
    """The text of a batch script, from a file of the directory slurm."""
    for path in (directory / template for directory in _TEMPLATES):
        if path.is_file():
            return _BLANK_LINES.sub("\n\n", Template(path.read_text()).substitute(values))
    raise SiteError(f"the installation has no slurm/{template}", "install rollart-hpc again")


def _of_component(component: Component, plan: Plan, config: RunConfig, site: SiteConfig, run: RunDir) -> str:
    options = site.options(component.hardware)
    of_script: list[Option] = []
    if component.index == 0:
        of_script = [("signal", f"B:USR1@{config.job.signal_s}"), *of_the_script(options, run)]
    return directives(component, job_name(config, run), plan.time_minutes, config, site, of_script)


def directives(
    component: Component, name: str, minutes: int, config: RunConfig, site: SiteConfig, of_script: list[Option]
) -> str:
    options = site.options(component.hardware)
    chosen: list[Option] = [("job-name", name), ("partition", component.partition)]
    chosen += _resources(component, site)
    chosen += [("time", clock(minutes)), ("requeue", None), ("propagate", "NONE")]
    chosen += permissions(config, options)
    chosen += [*of_script, *free_options({**options.sbatch, **config.job.sbatch})]
    return "\n".join(f"#SBATCH --{name}" + ("" if value is None else f"={_quoted(value)}") for name, value in chosen)


def allocation_options(component: Component, plan: Plan, config: RunConfig, site: SiteConfig, run: RunDir) -> list[str]:
    """salloc's options for one component: those of the script, without the ones for the script itself."""
    options = site.options(component.hardware)
    chosen: list[Option] = [("job-name", job_name(config, run)), ("partition", component.partition)]
    chosen += [*_resources(component, site), ("time", clock(plan.time_minutes)), *permissions(config, options)]
    free = {name: value for name, value in {**options.sbatch, **config.job.sbatch}.items() if name not in _OF_BATCH}
    chosen += free_options(free)
    return [f"--{name}" + ("" if value is None else f"={value}") for name, value in chosen]


def _resources(component: Component, site: SiteConfig) -> Iterator[Option]:
    needs = component.per_node
    yield "nodes", str(len(component.nodes))
    yield "ntasks-per-node", "1"
    yield "cpus-per-task", str(needs.cpus)
    if needs.memory_gb:
        yield "mem", _memory(needs.memory_gb)
    if needs.gpus:
        kind = site.classes[component.hardware].gres
        yield "gres", f"gpu:{kind}:{needs.gpus}" if kind else f"gpu:{needs.gpus}"
    if site.classes[component.hardware].whole_nodes and not site.options(component.hardware).sbatch.get("exclusive"):
        yield "exclusive", None


def _memory(gb: float) -> str:
    return f"{gb:g}G" if gb == int(gb) else f"{math.ceil(gb * 1024)}M"


def permissions(config: RunConfig, options: Options) -> Iterator[Option]:
    """Settings of the run override those of the site."""
    chosen = {
        "account": config.job.account or options.account,
        "qos": config.job.qos or options.qos,
        "reservation": config.job.reservation or options.reservation,
        "constraint": options.constraint,
        "exclude": options.exclude,
        "dependency": config.job.dependency,
        "comment": config.job.comment,
    }
    yield from ((name, value) for name, value in chosen.items() if value)


def of_the_script(options: Options, run: RunDir) -> Iterator[Option]:
    yield "chdir", str(run.path)
    yield "output", f"{str(run.job_logs).replace('%', '%%')}/%x-%j.log"
    yield "open-mode", "append"
    if options.mail_type:
        yield "mail-type", options.mail_type
    if options.mail_user:
        yield "mail-user", options.mail_user


def free_options(options: dict[str, Any]) -> Iterator[Option]:
    for name, value in options.items():
        if value is True:
            yield name, None
        elif value is not False:
            yield name, str(value)


def setup_lines(site: SiteConfig, options: Options) -> Iterator[str]:
    """Shell lines that run before Python starts in a job. All processes inherit what they set."""
    parent = str(_PACKAGE.parent)
    if not options.python and not _is_installed(parent):
        yield f"export PYTHONPATH={shlex.quote(parent)}${{PYTHONPATH:+:$PYTHONPATH}}"
    for name, value in site.network.env.items():
        yield f"export {name}={shlex.quote(value)}"
    if options.prologue:
        yield options.prologue.rstrip()


def _is_installed(parent: str) -> bool:
    """Installed, and not only importable because Python was started in a checkout."""
    places = [path for path in sys.path if path not in ("", parent)]
    return any(metadata.distributions(name="rollart-hpc", path=places))


def _quoted(value: str) -> str:
    """sbatch splits its lines like a shell."""
    return shlex.quote(_one_line(value))


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())
