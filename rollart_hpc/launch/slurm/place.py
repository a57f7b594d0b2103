"""The nodes of a run's jobs as a place: their agents start the processes. Owns how steps are ended.

Nodes of the run's own job are there from the start to the end. Those of other jobs (`satellites`) and guests come and
go (`node_agents`).

The controller runs next to the supervisor, in the batch step, because it must be reachable at once. The MPI world of
relays is a job step of its own. An srun ends its step on SIGTERM; a step whose srun is gone is cancelled by id, which
is looked up by the step's unique name.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress

from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import UserError
from rollart_hpc.launch.agents.child import RemoteChild
from rollart_hpc.launch.agents.server import AgentServer, Arrived, Departed, Warning
from rollart_hpc.launch.guests import neediest_pool, plan_guest
from rollart_hpc.launch.place import Change, LocalPlace, Nodes
from rollart_hpc.launch.plan import CONTROLLER, Plan, Proc
from rollart_hpc.launch.process import Child, Order, start_child, wait_for
from rollart_hpc.launch.slurm.agent_command import Inside
from rollart_hpc.launch.slurm.agent_steps import AgentSteps, prologue_of, step_environment, step_name
from rollart_hpc.launch.slurm.allocation import Allocation
from rollart_hpc.launch.slurm.budget import Budget
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError
from rollart_hpc.launch.slurm.node_agents import NodeAgents
from rollart_hpc.launch.slurm.requeue import requeue_the_rest, time_to_leave_s
from rollart_hpc.launch.slurm.satellites import Satellites
from rollart_hpc.launch.slurm.step import SrunStep
from rollart_hpc.processes.lifetime import STAYS_VARIABLE
from rollart_hpc.rundir import RunDir
from rollart_hpc.wire.interfaces import address_of
from rollart_hpc.wire.messages import Offer, Progress

SRUN_S = 8.0  # maximum time for srun to end its step
CANCEL_S = 5.0
ANSWER_S = 10.0  # maximum time for an agent to end a process, in addition to what the process gets
AFTER_S = 40.0  # time needed after the last checkpoint of a job: ending steps, epilogues, the requeue
QUERY_S = 10.0  # timeout of Slurm queries, during which the supervisor waits


class SlurmPlace:
    is_patient = True  # Slurm follows its SIGTERM with SIGKILL by itself

    def __init__(
        self,
        run: RunDir,
        config: RunConfig,
        plan: Plan,
        site: SiteConfig,
        allocation: Allocation,
        slurm: Slurm,
        budget: Budget,
        satellites: Satellites,
    ) -> None:
        self._run, self._config, self._plan, self._site = run, config, plan, site
        self._allocation, self._slurm, self._budget = allocation, slurm, budget
        self._local = LocalPlace()
        self._leave_s = math.inf  # on the local monotonic clock
        self._satellites = satellites
        self._node_agents = NodeAgents(allocation.hosts, self._invite)
        self._told: Progress | None = None
        self._steps = AgentSteps(run, config, plan, site, allocation, lambda step: self._cancel([step]))
        self.nodes: Nodes | None = None

    def open(self) -> None:
        """Start the agents: they import what their roles need while the base model is made."""
        network, timeouts = self._site.network, self._config.timeouts
        self._server = AgentServer(
            self._run,
            address_of(network.control),
            network.ports,
            heartbeat_s=timeouts.heartbeat_s,
            silence_s=timeouts.silence_s,
        )
        self.nodes = self
        self._steps.open()

    def close(self) -> None:
        """End the agents."""
        if self.nodes is not None:
            self._server.close()
            wait_for(self._steps.running, SRUN_S)
            self.end(self._steps.running)

    # --- nodes -----------------------------------------------------------------------------------

    def fileno(self) -> int:
        return self._server.fileno()

    def take(self) -> list[Change]:
        changes: list[Change] = []
        for news in self._server.take():
            if isinstance(news, Arrived):
                changes += self._arrived(news.agent, news.offer)
            elif isinstance(news, Departed):
                changes += self._departed(news.agent, news.reason)
            elif isinstance(news, Warning):
                changes += self._node_agents.warned(news.agent)
        return changes

    def _arrived(self, agent: str, offer: Offer) -> list[Change]:
        changes: list[Change] = []
        for other in self._node_agents.replaced(agent, offer):
            self._server.give_up(other, "another agent stands for its node")
            changes += self._departed(other, "its job has started again")
        try:
            came = self._node_agents.arrived(agent, offer)
        except UserError as error:
            self._server.decline(agent, error.what, error.fix)
            return changes
        if any(self._node_agents.is_home(change.node) for change in came):
            self._steps.came(offer.host)
        for change in came:
            self._satellites.came(change.node, offer.job)
        return changes + came

    def _departed(self, agent: str, reason: str) -> list[Change]:
        offer = self._node_agents.offer_of(agent)
        lost = self._node_agents.departed(agent, reason)
        if offer is not None and any(self._node_agents.is_home(change.node) for change in lost):
            self._steps.lost(offer.host)
        for change in lost:
            self._satellites.left(change.node, offer.job if offer else "", reason)
        return lost

    def _invite(self, offer: Offer, node: str) -> tuple[Proc, ...]:
        """What a guest runs."""
        if offer.pool and offer.pool not in self._config.pools:
            raise UserError(f"there is no pool {offer.pool!r}", f"--pool {' or --pool '.join(self._config.pools)}")
        there = Counter(proc.pool for proc in self._plan.of("engine") if self.has(proc.node))
        pool = offer.pool or neediest_pool(self._config, self._told.turns if self._told else {}, there)
        return plan_guest(offer, node, pool, self._config, self._site)

    def has(self, node: str) -> bool:
        return self._node_agents.has(node)

    def shares_fate(self, node: str) -> bool:
        return self._node_agents.is_home(node)

    def need_nodes(self) -> None:
        self._satellites.open()

    def release(self, node: str) -> None:
        """Its agent leaves, and the job with it, which would only wait for its time limit or for being preempted."""
        agent = self._node_agents.agent_of(node)
        if agent:
            self._server.dismiss(agent, "its node is no longer needed")

    def see(self, told: Progress, now: float) -> None:
        self._told = told
        self._satellites.see(told, now)

    def tick(self, now: float) -> None:
        for agent in filter(None, map(self._node_agents.agent_at, self._steps.tick(now))):
            self._server.give_up(agent, "its job step has ended")  # long before its silence tells
        self._satellites.check()

    # --- the time of the job ---------------------------------------------------------------------

    def left_s(self) -> float:
        return self._budget.left_s()

    def save_s(self, usual_s: float) -> float:
        """What is left of the margin, minus the time needed afterwards; at least half of it."""
        grace_s = self._budget.grace_s()
        return max(grace_s - AFTER_S, grace_s / 2)

    def told_to_end(self) -> None:
        """Slurm may soon kill this process too, so a thread talks to Slurm now, while the checkpoint is written."""
        threading.Thread(target=self._talk_to_slurm, args=(time.monotonic(),), daemon=True).start()

    def _talk_to_slurm(self, since_s: float) -> None:
        requeue_the_rest(self._slurm, self._allocation)
        self._leave_s = since_s + time_to_leave_s(self._slurm, self._allocation)

    def is_closing(self) -> bool:
        return time.monotonic() >= self._leave_s

    # --- processes -------------------------------------------------------------------------------

    def start(
        self, order: Order, command: list[str], variables: dict[str, str], pass_fds: tuple[int, ...] = ()
    ) -> Child:
        network = self._site.network
        variables = variables | network.env
        if order.proc.name == CONTROLLER:
            command = [*command, f"--control={network.control}", f"--ports={network.ports}"]
            return self._local.start(order, command, variables | {STAYS_VARIABLE: "1"}, pass_fds)
        arguments = [*command[command.index("-m") :], f"--data={network.data or network.control}"]
        return self._server.start(self._node_agents.agent_of(order.proc.node), order, arguments, variables)

    def start_world(self, order: Order, command: list[str], variables: dict[str, str]) -> Child:
        """A rank finds its process by host name, because Slurm chooses the order of ranks within a component."""
        network = self._site.network
        if self._site.mpi == "none":
            raise UserError(
                "weights.collective=mpi, but the site file says mpi: none",
                "set mpi to a type of `srun --mpi=list` (pmi2 for mpich), or set weights.collective=gloo",
            )
        hosts = ",".join(self._allocation.hosts[seat.node] for seat in order.seats)
        command = [*command, f"--data={network.data or network.control}", f"--hosts={hosts}"]
        everything = step_environment(self._site) | variables | {STAYS_VARIABLE: "1"}
        step = start_child(order, self._srun_world(order, command), everything, kind=SrunStep)
        assert isinstance(step, SrunStep)
        step.slurm_name, step.abandoned = step_name(order), lambda: self._cancel([step])
        return step

    def end(self, children: Iterable[Child], grace_s: float = 0.0, term_s: float = 0.0) -> dict[str, int]:
        running = list(children)
        remote = [child for child in running if isinstance(child, RemoteChild)]
        steps = [child for child in running if isinstance(child, SrunStep)]
        for child in remote:
            child.end(grace_s, term_s)
        if steps:
            wait_for(steps, grace_s)
        for step in steps:
            step.signal(signal.SIGTERM)
        others = [child for child in running if child not in remote and child not in steps]
        codes = self._local.end(others, 0.0 if steps else grace_s, term_s)
        wait_for(remote, grace_s + term_s + ANSWER_S)
        wait_for(steps, SRUN_S)
        left = [step for step in steps if not step.has_ended()]
        if left:
            self._cancel(left)
            wait_for(left, CANCEL_S)
        codes |= {step.name: step.reap() for step in steps}
        return codes | {child.name: child.reap(0.0) for child in remote}

    # --- the MPI world ---------------------------------------------------------------------------

    def _srun_world(self, order: Order, command: list[str]) -> list[str]:
        """One step over all components that have a rank, with one rank space. All ranks end when one fails."""
        full = ["srun", f"--jobid={self._allocation.leader}", f"--mpi={self._site.mpi}", "--kill-on-bad-exit=1"]
        full.append("--input=none")
        by_component: dict[int, list[Proc]] = {}
        for seat in order.seats:
            by_component.setdefault(self._plan.component_of(seat.node).index, []).append(seat)
        parts = []
        for _, seats in sorted(by_component.items()):
            component = self._plan.component_of(seats[0].node)
            within = Inside(self._run, self._config, self._site)
            prologue = prologue_of(component, self._plan, self._site)
            options = [*self._part(order, seats), *within.srun_options(component)]
            parts.append([*options, *within.command(component, command, prologue)])
        return [*full, *parts[0], *(word for part in parts[1:] for word in (":", *part))]

    def _part(self, order: Order, seats: list[Proc]) -> list[str]:
        """One rank on each host, beside the agents."""
        component = self._plan.component_of(seats[0].node)
        hosts = ",".join(self._allocation.hosts[seat.node] for seat in seats)
        options = [
            f"--nodes={len(seats)}", f"--ntasks={len(seats)}", "--ntasks-per-node=1",
            f"--cpus-per-task={seats[0].needs.cpus}", f"--nodelist={hosts}", "--export=ALL", "--unbuffered",
            "--overlap", f"--chdir={self._run.path}", f"--job-name={step_name(order)}",
        ]  # fmt: skip
        if self._allocation.is_folded:
            return options
        options.append("--gres=none")
        if component.per_node.memory_gb:
            options.append("--mem=0")
        if self._allocation.is_heterogeneous:
            options.append(f"--het-group={component.index}")
        return options

    # --- steps without an srun -------------------------------------------------------------------

    def _cancel(self, steps: list[SrunStep]) -> None:
        """If Slurm does not answer, the processes end when the heartbeats of controller and supervisor stop."""
        names = {step.slurm_name for step in steps}
        jobs = ",".join(str(job_id) for job_id in self._allocation.job_ids)
        with suppress(SlurmError):
            known = self._slurm.table("squeue", {"id": "%i", "name": "%j"}, "--steps", "--jobs", jobs)
            for row in known:
                if row["name"] in names:
                    self._slurm.run("scancel", "--signal=KILL", row["id"], limit_s=QUERY_S)
