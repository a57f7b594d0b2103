"""The command that runs the agents of a component's nodes. Owns srun's options for them; starts nothing.

The supervisor uses it for the nodes of its own job (`agent_steps`), batch scripts of other jobs contain it
(`satellite_script`). A step has all the CPUs, memory and GPUs that its job has on the nodes, bound to nothing: the
agents share them out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.launch.command import python
from rollart_hpc.launch.plan import Component, Proc
from rollart_hpc.launch.preloaded import preloaded_kinds, preloaded_roles
from rollart_hpc.launch.slurm import containers
from rollart_hpc.launch.slurm.script import free_options
from rollart_hpc.rundir import RunDir

AGENT = "rollart_hpc.launch.agents.agent"


def agent_command(
    run: RunDir, config: RunConfig, component: Component, procs: Iterable[Proc], *options: str
) -> list[str]:
    """`procs`: what its node may be told to start."""
    command = python("-m", AGENT, f"--run-dir={run.path}", f"--hardware={component.hardware}", *options)
    roles = {proc.role for proc in procs}
    if roles & preloaded_roles(config):
        command += ["--preload", *preloaded_kinds(config, roles)]
    return command


def srun(run: RunDir, component: Component, num_hosts: int, name: str) -> list[str]:
    """All options are explicit: which ones srun inherits depends on Slurm's version."""
    return [
        "srun", "--mpi=none", "--kill-on-bad-exit=0", "--no-kill", f"--nodes={num_hosts}", f"--ntasks={num_hosts}",
        "--ntasks-per-node=1", "--overlap", "--cpu-bind=none", "--export=ALL", "--unbuffered", "--input=none",
        f"--chdir={run.path}", f"--job-name={name}",
    ]  # fmt: skip


def all_of_the_nodes(component: Component, site: SiteConfig) -> list[str]:
    """srun's options for everything that the component requested of each node."""
    needs, kind = component.per_node, site.classes[component.hardware].gres
    options = [f"--cpus-per-task={needs.cpus}"]
    if needs.gpus:
        options += [f"--gres=gpu:{kind}:{needs.gpus}" if kind else f"--gres=gpu:{needs.gpus}", "--gpu-bind=none"]
    else:
        options.append("--gres=none")
    return [*options, "--mem=0"] if needs.memory_gb else options  # all the memory of the job


class Inside:
    """How a command runs on the nodes of a class: interpreter, container, shell lines, further options of srun."""

    def __init__(self, run: RunDir, config: RunConfig, site: SiteConfig) -> None:
        self._run, self._site = run, site
        self._mounts = containers.mounts_of(run, config)

    def srun_options(self, component: Component) -> list[str]:
        options = self._site.options(component.hardware)
        given = [f"--{name}" + ("" if value is None else f"={value}") for name, value in free_options(options.srun)]
        return [*given, *containers.srun_options(options.container, self._mounts, self._run.path)]

    def command(self, component: Component, command: list[str], prologue: str = "") -> list[str]:
        """After `prologue`, with temporary files where the class wants them."""
        options = self._site.options(component.hardware)
        if command[0] == sys.executable and (options.python or options.container.kind):
            command = [options.python or containers.PYTHON, *command[1:]]
        gpus = component.per_node.gpus > 0
        command = containers.wrapped(options.container, command, self._mounts, self._run.path, gpus=gpus)
        lines = [f'export TMPDIR="{options.scratch}"'] if options.scratch else []
        lines += [prologue] if prologue else []
        return ["/bin/bash", "-c", "\n".join([*lines, 'exec "$@"']), "rollart", *command] if lines else command
