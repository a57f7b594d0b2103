"""The job steps that run the agents of a job's nodes: one srun per component. Owns srun's options for them.

A step has all the CPUs, memory and GPUs that the job has on its nodes, bound to nothing: the agents share them out. It
overlaps with other steps, so that a lost agent can be replaced while its srun still runs those of other nodes.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import SiteError
from rollart_hpc.launch.command import environment, python
from rollart_hpc.launch.plan import Component, Plan, Proc
from rollart_hpc.launch.preloaded import preloaded_kinds, preloaded_roles
from rollart_hpc.launch.process import Order, start_child
from rollart_hpc.launch.restarts import RoleBudget
from rollart_hpc.launch.slurm import containers
from rollart_hpc.launch.slurm.allocation import Allocation
from rollart_hpc.launch.slurm.commands import clean_environment
from rollart_hpc.launch.slurm.script import free_options
from rollart_hpc.launch.slurm.step import SrunStep
from rollart_hpc.rundir import RunDir

AGENT = "rollart_hpc.launch.agents.agent"


class AgentSteps:
    def __init__(
        self,
        run: RunDir,
        config: RunConfig,
        plan: Plan,
        site: SiteConfig,
        allocation: Allocation,
        abandoned: Callable[[SrunStep], None],
    ) -> None:
        """`abandoned` is called for a step whose srun was killed."""
        self._run, self._config, self._plan, self._site = run, config, plan, site
        self._allocation, self._abandoned = allocation, abandoned
        self._inside = Inside(run, config, plan, site)
        self._budget = RoleBudget(config.restarts.per_role)
        self._due_s: dict[str, float] = {}  # by host: when to replace its agent
        self._since_s: dict[str, float] = {}
        self.running: list[SrunStep] = []

    def open(self) -> None:
        """Start an agent on every node."""
        for component in self._plan.components:
            hosts = list(dict.fromkeys(self._allocation.hosts[node] for node in component.nodes))
            hosts = [host for host in hosts if host not in self._since_s]  # components of a folded job share nodes
            if hosts:
                self._start(component, hosts)

    def lost(self, host: str) -> None:
        """Its agent is gone. Raises if that happens too often."""
        now = time.monotonic()
        delay_s = self._budget.next_delay_s(host, now - self._since_s.get(host, now))
        if delay_s is None:
            raise SiteError(
                f"the agent on {host} keeps failing and has used up restarts.per_role",
                f"read its log: {self._run.job_logs}",
            )
        self._due_s[host] = now + delay_s

    def tick(self, now: float) -> None:
        for host in [host for host, due_s in self._due_s.items() if due_s <= now]:
            del self._due_s[host]
            node = next(node for node, known in self._allocation.hosts.items() if known == host)
            self._start(self._plan.component_of(node), [host])
        for step in [step for step in self.running if step.has_ended()]:
            self.running.remove(step)
            step.reap()

    def _start(self, component: Component, hosts: Sequence[str]) -> None:
        for host in hosts:
            self._since_s[host] = time.monotonic()
        name = f"agents-{component.index}" if len(hosts) > 1 else f"agent-{hosts[0]}"
        order = Order(Proc(name, "agent", component.hardware, ""), 0, self._run.job_log(name))
        command = self._inside.command(component, self._agent(component, hosts))
        full = [*self._srun(component, hosts, order), *command]
        step = start_child(order, full, step_environment(self._site), kind=SrunStep)
        assert isinstance(step, SrunStep)
        step.slurm_name, step.abandoned = step_name(order), partial(self._abandoned, step)
        self.running.append(step)

    def _agent(self, component: Component, hosts: Sequence[str]) -> list[str]:
        job = self._allocation.job_ids[component.index]
        command = python("-m", AGENT, f"--run-dir={self._run.path}", f"--job={job}", f"--hardware={component.hardware}")
        nodes = {node for node, host in self._allocation.hosts.items() if host in hosts}
        roles = {proc.role for proc in self._plan.procs if proc.node in nodes}
        if roles & preloaded_roles(self._config):
            command += ["--preload", *preloaded_kinds(self._config, roles)]
        return command

    def _srun(self, component: Component, hosts: Sequence[str], order: Order) -> list[str]:
        """All options are explicit: which ones srun inherits depends on Slurm's version."""
        needs, num_hosts = component.per_node, len(hosts)
        options = [
            "srun", f"--jobid={self._allocation.leader}", "--mpi=none", "--kill-on-bad-exit=0", "--no-kill",
            f"--nodes={num_hosts}", f"--ntasks={num_hosts}", "--ntasks-per-node=1", f"--cpus-per-task={needs.cpus}",
            f"--nodelist={','.join(hosts)}", "--overlap", "--cpu-bind=none", "--export=ALL", "--unbuffered",
            "--input=none", f"--chdir={self._run.path}", f"--job-name={step_name(order)}",
        ]  # fmt: skip
        options += self._inside.srun_options(component)
        if self._allocation.is_folded:
            return [*options[:8], *options[9:]]  # whatever CPUs the user's own job has
        if needs.gpus:
            kind = self._site.classes[component.hardware].gres
            options += [f"--gres=gpu:{kind}:{needs.gpus}" if kind else f"--gres=gpu:{needs.gpus}", "--gpu-bind=none"]
        else:
            options.append("--gres=none")
        if needs.memory_gb:
            options.append("--mem=0")  # all the memory of the job
        if self._allocation.is_heterogeneous:
            options.append(f"--het-group={component.index}")
        return options


def step_name(order: Order) -> str:
    """A name that is unique to this start."""
    return f"{order.proc.name}.{order.incarnation}"


def step_environment(site: SiteConfig) -> dict[str, str]:
    """Of an srun: that of the batch script, without what Slurm set for it."""
    variables = clean_environment(environment()) | site.network.env
    variables.pop("CUDA_VISIBLE_DEVICES", None)  # set for the first component, wrong in all others
    return variables


class Inside:
    """How a command runs on the nodes of a class: interpreter, container, shell lines, further options of srun."""

    def __init__(self, run: RunDir, config: RunConfig, plan: Plan, site: SiteConfig) -> None:
        self._run, self._plan, self._site = run, plan, site
        self._mounts = containers.mounts_of(run, config)

    def srun_options(self, component: Component) -> list[str]:
        options = self._site.options(component.hardware)
        given = [f"--{name}" + ("" if value is None else f"={value}") for name, value in free_options(options.srun)]
        return [*given, *containers.srun_options(options.container, self._mounts, self._run.path)]

    def command(self, component: Component, command: list[str]) -> list[str]:
        options = self._site.options(component.hardware)
        if command[0] == sys.executable and (options.python or options.container.kind):
            command = [options.python or containers.PYTHON, *command[1:]]
        gpus = component.per_node.gpus > 0
        command = containers.wrapped(options.container, command, self._mounts, self._run.path, gpus=gpus)
        lines = []
        if options.scratch:
            lines.append(f'export TMPDIR="{options.scratch}"')
        if component.index and options.prologue != self._site.options(self._plan.components[0].hardware).prologue:
            lines.append(options.prologue)  # the batch script has run that of the first component
        return ["/bin/bash", "-c", "\n".join([*lines, 'exec "$@"']), "rollart", *command] if lines else command
