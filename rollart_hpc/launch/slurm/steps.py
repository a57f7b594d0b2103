"""The nodes of a Slurm job as a place: a process is one step of it. Owns srun's options and how a step is ended.

The child is the local srun: it lives as long as its step, passes signals on and returns the exit code. On SIGTERM it
kills the step's processes; a step whose srun is gone is cancelled by its id, which is looked up by a name that no
other step has. The controller runs beside the supervisor, in the batch step: it must be reachable at once.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path

from rollart_hpc.config.process import STAYS_VARIABLE
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.launch.place import LocalPlace
from rollart_hpc.launch.plan import CONTROLLER, Component, Plan, Proc
from rollart_hpc.launch.process import Child, Order, start_child, wait_for
from rollart_hpc.launch.slurm.allocation import Allocation
from rollart_hpc.launch.slurm.budget import Budget
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError, clean_environment

SRUN_S = 8.0  # a step is gone so long after its srun was asked to end it
CANCEL_S = 5.0
QUERY_S = 10.0  # Slurm's answers; the supervisor waits for them


class Step(Child):
    """An srun."""

    abandoned: Callable[[], None] | None = None  # cancels the step; set by the place

    def reap(self, timeout_s: float = 30.0) -> int:
        """The exit code of the process itself: srun returns 128 + N for one that signal N ended."""
        code = super().reap(timeout_s)
        if code < 0 and self.abandoned is not None:  # srun was killed, its step lives on
            self.abandoned()
        return 128 - code if 128 < code < 192 else code


class SlurmPlace:
    is_patient = True  # who sends SIGTERM here sends SIGKILL in time

    def __init__(
        self, run_dir: Path, plan: Plan, site: SiteConfig, allocation: Allocation, slurm: Slurm, budget: Budget
    ) -> None:
        self._run_dir, self._plan, self._site = run_dir, plan, site
        self._allocation, self._slurm, self._budget = allocation, slurm, budget
        self._local = LocalPlace()

    def left_s(self) -> float:
        return self._budget.left_s()

    def start(
        self, order: Order, command: list[str], environment: dict[str, str], pass_fds: tuple[int, ...] = ()
    ) -> Child:
        network = self._site.network
        variables = clean_environment(environment) | network.env | {STAYS_VARIABLE: "1"}
        variables.pop("CUDA_VISIBLE_DEVICES", None)  # of the first component, wrong in all others
        if order.proc.name == CONTROLLER:
            command = [*command, f"--control={network.control}", f"--ports={network.ports}"]
            return self._local.start(order, command, variables, pass_fds)
        command = [*command, f"--data={network.data or network.control}"]
        component = self._plan.component_of(order.proc.node)
        full = [*self._srun(order, component), *self._inside(component, command)]
        step = start_child(order, full, variables, kind=Step)
        assert isinstance(step, Step)
        step.abandoned = partial(self._cancel, [step])
        return step

    def end(self, children: Iterable[Child], grace_s: float = 0.0, term_s: float = 0.0) -> dict[str, int]:
        running = list(children)
        wait_for(running, grace_s)
        steps = [child for child in running if isinstance(child, Step)]
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
        """Everything is stated: srun inherits some of the job's options and not others, by version."""
        proc, needs = order.proc, order.proc.needs
        options = [
            "srun", f"--jobid={self._allocation.leader}", "--nodes=1", "--ntasks=1", f"--cpus-per-task={needs.cpus}",
            f"--gres={self._gres(proc, component)}", "--exact", f"--nodelist={self._allocation.hosts[proc.node]}",
            "--mpi=none", "--export=ALL", "--input=none", "--kill-on-bad-exit=0", "--unbuffered",
            f"--chdir={self._run_dir}", f"--job-name={step_name(order)}",
        ]  # fmt: skip
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
        """The command with the class's own interpreter, behind the class's own shell lines if it has any."""
        options = self._site.options(component.hardware)
        if options.python and command[0] == sys.executable:
            command = [options.python, *command[1:]]
        lines = []
        if options.scratch:
            lines.append(f'export TMPDIR="{options.scratch}"')
        if component.index and options.prologue != self._site.options(self._plan.components[0].hardware).prologue:
            lines.append(options.prologue)  # that of the first component was run by the batch script
        return ["/bin/bash", "-c", "\n".join([*lines, 'exec "$@"']), "rollart", *command] if lines else command

    # --- steps without an srun -------------------------------------------------------------------

    def _cancel(self, steps: list[Step]) -> None:
        """If Slurm does not answer, the processes end by the controller's silence."""
        names = {step_name(step.order) for step in steps}
        jobs = ",".join(str(job_id) for job_id in self._allocation.job_ids)
        with suppress(SlurmError):
            known = self._slurm.table("squeue", {"id": "%i", "name": "%j"}, "--steps", "--jobs", jobs)
            for row in known:
                if row["name"] in names:
                    self._slurm.run("scancel", "--signal=KILL", row["id"], limit_s=QUERY_S)


def step_name(order: Order) -> str:
    """Of this start and no other."""
    return f"{order.proc.name}.{order.incarnation}"
