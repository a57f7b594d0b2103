"""The job steps that run the agents of the run's own job: one srun per component. Owns when they start.

A step overlaps with others, so that a lost agent can be replaced while its srun still runs those of other nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import SiteError
from rollart_hpc.launch.command import environment
from rollart_hpc.launch.plan import Component, Plan, Proc
from rollart_hpc.launch.process import Order, start_child
from rollart_hpc.launch.restarts import RoleBudget
from rollart_hpc.launch.slurm.agent_command import Inside, agent_command, all_of_the_nodes, srun
from rollart_hpc.launch.slurm.allocation import Allocation
from rollart_hpc.launch.slurm.commands import clean_environment
from rollart_hpc.launch.slurm.step import SrunStep
from rollart_hpc.rundir import RunDir


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
        self._inside = Inside(run, config, site)
        self._budget = RoleBudget(config.restarts.per_role)
        self._due_s: dict[str, float] = {}  # by host: when to replace its agent
        self._since_s: dict[str, float] = {}
        self._awaited: dict[str, SrunStep] = {}  # by host: the step of its agent, until that has come
        self._late_s: dict[str, float] = {}  # by awaited host: when it must have come
        self._step_of: dict[str, SrunStep] = {}  # by host: the step of the agent that has come last
        self.running: list[SrunStep] = []

    def open(self) -> None:
        """Start an agent on every node."""
        for component in self._plan.home:
            hosts = list(dict.fromkeys(self._allocation.hosts[node] for node in component.nodes))
            hosts = [host for host in hosts if host not in self._since_s]  # components of a folded job share nodes
            if hosts:
                self._start(component, hosts)

    def came(self, host: str) -> None:
        """Its agent has answered: it is no longer awaited. If only its connection broke, no other one is started."""
        step = self._no_longer_awaited(host)
        if step is not None:
            self._step_of[host] = step
        if self._due_s.pop(host, None) is not None:
            self._budget.give_back(host)

    def _no_longer_awaited(self, host: str) -> SrunStep | None:
        self._late_s.pop(host, None)
        return self._awaited.pop(host, None)

    def lost(self, host: str) -> None:
        """Its agent is gone. Raises if that happens too often."""
        self._replace(host, time.monotonic() - self._since_s[host])

    def _replace(self, host: str, lived_s: float) -> None:
        delay_s = self._budget.next_delay_s(host, lived_s)
        if delay_s is None:
            raise SiteError(
                f"the agent on {host} keeps failing and has used up restarts.per_role",
                f"read its log: {self._run.job_logs}",
            )
        self._due_s[host] = time.monotonic() + delay_s

    def tick(self, now: float) -> list[str]:
        """Returns hosts whose agent had come and has ended with its step, or before."""
        for host in [host for host, due_s in self._due_s.items() if due_s <= now]:
            del self._due_s[host]
            node = next(node for node, known in self._allocation.hosts.items() if known == host)
            self._start(self._plan.component_of(node), [host])
        gone: list[str] = []
        for step in [step for step in self.running if step.has_ended()]:
            self.running.remove(step)
            step.reap()
            self._give_up([host for host, waited_for in self._awaited.items() if waited_for is step])
            gone += [host for host, known in self._step_of.items() if known is step]
        for host in self._awaited:  # from the first tick on: nobody listens while the base model is made
            self._late_s.setdefault(host, now + self._config.timeouts.start_s)
        self._give_up([host for host in self._awaited if now > self._late_s[host]])
        return gone

    def _give_up(self, hosts: Sequence[str]) -> None:
        """Their agents have ended before they answered, or take too long."""
        for host in hosts:
            self._no_longer_awaited(host)
            self._replace(host, 0.0)

    def _start(self, component: Component, hosts: Sequence[str]) -> None:
        for host in hosts:
            self._since_s[host] = time.monotonic()
        name = f"agents-{component.index}" if len(hosts) > 1 else f"agent-{hosts[0]}"
        order = Order(Proc(name, "agent", component.hardware, ""), 0, self._run.job_log(name))
        full = [*self._srun(component, hosts, order), *self._agent(component, hosts)]
        step = start_child(order, full, step_environment(self._site), kind=SrunStep)
        assert isinstance(step, SrunStep)
        step.slurm_name, step.abandoned = step_name(order), partial(self._abandoned, step)
        self.running.append(step)
        self._awaited |= dict.fromkeys(hosts, step)

    def _agent(self, component: Component, hosts: Sequence[str]) -> list[str]:
        nodes = {node for node, host in self._allocation.hosts.items() if host in hosts}
        there = [proc for proc in self._plan.procs if proc.node in nodes]
        job = self._allocation.job_ids[component.index]
        return self._inside.command(
            component,
            agent_command(self._run, self._config, component, there, f"--job={job}"),
            prologue_of(component, self._plan, self._site),
        )

    def _srun(self, component: Component, hosts: Sequence[str], order: Order) -> list[str]:
        options = srun(self._run, component, len(hosts), step_name(order))
        options += [f"--jobid={self._allocation.leader}", f"--nodelist={','.join(hosts)}"]
        options += self._inside.srun_options(component)
        if self._allocation.is_folded:
            return options  # whatever the user's own job has
        options += all_of_the_nodes(component, self._site)
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


def prologue_of(component: Component, plan: Plan, site: SiteConfig) -> str:
    """What must still run on the nodes of a component: the batch script has run the prologue of the first one."""
    own = site.options(component.hardware).prologue
    return "" if not component.index or own == site.options(plan.components[0].hardware).prologue else own
