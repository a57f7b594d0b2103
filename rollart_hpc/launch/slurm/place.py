"""The nodes of a Slurm job as a place: each process is a job step. Owns srun's options and how a step is ended.

The child is the local srun: it lives as long as its step, forwards signals and returns the exit code. On SIGTERM it
kills the step's processes. A step whose srun is gone is cancelled by id, which is looked up by the step's unique name.
The controller runs next to the supervisor, in the batch step, because it must be reachable at once.
"""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import UserError
from rollart_hpc.launch.command import python
from rollart_hpc.launch.place import LocalPlace
from rollart_hpc.launch.plan import CONTROLLER, Component, Plan, Proc
from rollart_hpc.launch.process import Child, Order, start_child, wait_for
from rollart_hpc.launch.slurm.allocation import Allocation
from rollart_hpc.launch.slurm.budget import Budget
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError, clean_environment
from rollart_hpc.launch.slurm.requeue import requeue_the_rest, time_to_leave_s
from rollart_hpc.launch.slurm.step import SrunStep, WarmSteps
from rollart_hpc.processes.lifetime import STAYS_VARIABLE
from rollart_hpc.rundir import RunDir

SRUN_S = 8.0  # maximum time for srun to end its step
CANCEL_S = 5.0
AFTER_S = 40.0  # time needed after the last checkpoint of a job: ending steps, epilogues, the requeue
QUERY_S = 10.0  # timeout of Slurm queries, during which the supervisor waits


class SlurmPlace:
    is_patient = True  # Slurm follows its SIGTERM with SIGKILL by itself

    def __init__(
        self, run_dir: Path, plan: Plan, site: SiteConfig, allocation: Allocation, slurm: Slurm, budget: Budget
    ) -> None:
        self._run_dir, self._plan, self._site = run_dir, plan, site
        self._allocation, self._slurm, self._budget = allocation, slurm, budget
        self._local = LocalPlace()
        self._warm = WarmSteps()
        self._leave_s = math.inf  # on the local monotonic clock

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

    def start(
        self, order: Order, command: list[str], environment: dict[str, str], pass_fds: tuple[int, ...] = ()
    ) -> Child:
        network, variables = self._site.network, self._variables(environment)
        if order.proc.name == CONTROLLER:
            command = [*command, f"--control={network.control}", f"--ports={network.ports}"]
            return self._local.start(order, command, variables, pass_fds)
        command = [*command, f"--data={network.data or network.control}"]
        return self._warm.take(order, command) or self._step(order, command, variables)

    def warm_up(self, proc: Proc, kind: str, environment: dict[str, str]) -> None:
        """Start the step of a process early: it imports what a role of this kind needs, then waits."""
        order = Order(proc, 0, RunDir(self._run_dir).job_log(proc.name))
        command = python("-m", "rollart_hpc.roles.warm", kind)
        self._warm.add(self._step(order, command, self._variables(environment), stdin=subprocess.PIPE))

    def cool_down(self) -> None:
        """End warm steps that were not used."""
        self._warm.close()

    def _variables(self, environment: dict[str, str]) -> dict[str, str]:
        variables = clean_environment(environment) | self._site.network.env | {STAYS_VARIABLE: "1"}
        variables.pop("CUDA_VISIBLE_DEVICES", None)  # set for the first component, wrong in all others
        return variables

    def _step(
        self, order: Order, command: list[str], variables: dict[str, str], stdin: int = subprocess.DEVNULL
    ) -> SrunStep:
        component = self._plan.component_of(order.proc.node)
        options = self._srun(order, component)
        options.append("--input=none" if stdin == subprocess.DEVNULL else "--input=0")
        return self._start_step(order, [*options, *self._inside(component, command)], variables, stdin)

    def start_world(self, order: Order, command: list[str], environment: dict[str, str]) -> Child:
        """A rank finds its process by host name, because Slurm chooses the order of ranks within a component."""
        network = self._site.network
        if self._site.mpi == "none":
            raise UserError(
                "weights.collective=mpi, but the site file says mpi: none",
                "set mpi to a type of `srun --mpi=list` (pmi2 for mpich), or set weights.collective=gloo",
            )
        hosts = ",".join(self._allocation.hosts[seat.node] for seat in order.seats)
        command = [*command, f"--data={network.data or network.control}", f"--hosts={hosts}"]
        return self._start_step(order, self._srun_world(order, command), self._variables(environment))

    def _start_step(
        self, order: Order, full: list[str], variables: dict[str, str], stdin: int = subprocess.DEVNULL
    ) -> SrunStep:
        step = start_child(order, full, variables, kind=SrunStep, stdin=stdin)
        assert isinstance(step, SrunStep)
        step.slurm_name = step_name(order)
        step.abandoned = partial(self._cancel, [step])
        return step

    def end(self, children: Iterable[Child], grace_s: float = 0.0, term_s: float = 0.0) -> dict[str, int]:
        running = list(children)
        wait_for(running, grace_s)
        steps = [child for child in running if isinstance(child, SrunStep)]
        for child in steps:
            child.signal(signal.SIGTERM)
        codes = self._local.end([child for child in running if child not in steps], 0.0, term_s)
        wait_for(steps, SRUN_S)
        left = [step for step in steps if not step.has_ended()]
        if left:
            self._cancel(left)
            wait_for(left, CANCEL_S)
        return codes | {step.name: step.reap() for step in steps}

    # --- srun ------------------------------------------------------------------------------------

    def _srun(self, order: Order, component: Component) -> list[str]:
        part = self._part(order, component, [order.proc])
        return ["srun", f"--jobid={self._allocation.leader}", "--mpi=none", "--kill-on-bad-exit=0", *part]

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
            parts.append([*self._part(order, component, seats), *self._inside(component, command)])
        return [*full, *parts[0], *(word for part in parts[1:] for word in (":", *part))]

    def _part(self, order: Order, component: Component, procs: list[Proc]) -> list[str]:
        """One process on each host. All options are explicit: which ones srun inherits depends on Slurm's version."""
        proc, needs = procs[0], procs[0].needs
        hosts = ",".join(self._allocation.hosts[each.node] for each in procs)
        options = [
            f"--nodes={len(procs)}", f"--ntasks={len(procs)}", "--ntasks-per-node=1", f"--cpus-per-task={needs.cpus}",
            f"--nodelist={hosts}", "--export=ALL", "--unbuffered",
            f"--chdir={self._run_dir}", f"--job-name={step_name(order)}",
        ]  # fmt: skip
        if self._allocation.is_folded:
            return [*options, "--overlap"]
        options += ["--exact", f"--gres={self._gres(proc, component)}"]
        if component.per_node.memory_gb:
            options.append(f"--mem={int(needs.memory_gb * 1024)}M")
        if self._allocation.is_heterogeneous:
            options.append(f"--het-group={component.index}")
        return options

    def _gres(self, proc: Proc, component: Component) -> str:
        if not proc.needs.gpus:
            return "none"
        kind = self._site.classes[component.hardware].gres
        return ":".join(["gpu", *([kind] if kind else []), str(proc.needs.gpus)])

    def _inside(self, component: Component, command: list[str]) -> list[str]:
        """The command with the interpreter of the class, after the shell lines of the class if it has any."""
        options = self._site.options(component.hardware)
        if options.python and command[0] == sys.executable:
            command = [options.python, *command[1:]]
        lines = []
        if options.scratch:
            lines.append(f'export TMPDIR="{options.scratch}"')
        if component.index and options.prologue != self._site.options(self._plan.components[0].hardware).prologue:
            lines.append(options.prologue)  # the batch script has run that of the first component
        return ["/bin/bash", "-c", "\n".join([*lines, 'exec "$@"']), "rollart", *command] if lines else command

    # --- steps without an srun -------------------------------------------------------------------

    def _cancel(self, steps: list[SrunStep]) -> None:
        """If Slurm does not answer, the processes end when the controller's heartbeats stop."""
        names = {step.slurm_name for step in steps}
        jobs = ",".join(str(job_id) for job_id in self._allocation.job_ids)
        with suppress(SlurmError):
            known = self._slurm.table("squeue", {"id": "%i", "name": "%j"}, "--steps", "--jobs", jobs)
            for row in known:
                if row["name"] in names:
                    self._slurm.run("scancel", "--signal=KILL", row["id"], limit_s=QUERY_S)


def step_name(order: Order) -> str:
    """A name that is unique to this start."""
    return f"{order.proc.name}.{order.incarnation}"
