"""The supervisor inside a Slurm job: the batch script execs `python -m rollart_hpc.launch.slurm.job --run-dir DIR`.

Runs the plan on the nodes of the job, and decides what happens when it ends:

    finished                        exit 0
    the time limit is near          checkpoint, requeue: the same job continues with the next attempt
    preemption (SIGTERM)            checkpoint if there is time, requeue unless Slurm has done so
    scancel (SIGTERM)               checkpoint if there is time, end
    a node failed                   Slurm restarts the job; if a role failed first, we requeue it
    anything else                   exit 2 or 3, the job fails

A job fails after `restarts.attempts` restarts without a new checkpoint.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from contextlib import suppress
from types import FrameType
from typing import get_args

import msgspec

from rollart_hpc.config.resolved import read_resolved, read_site
from rollart_hpc.errors import RollartError, SiteError, command_line
from rollart_hpc.files import write_json
from rollart_hpc.launch.base_model import prepare_model
from rollart_hpc.launch.elastic.slurm import SlurmWorkers
from rollart_hpc.launch.ownership import has_finished, write_ownership
from rollart_hpc.launch.plan import Component
from rollart_hpc.launch.plan_file import settle_plan
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.allocation import Allocation, fits, fold, read_allocation
from rollart_hpc.launch.slurm.budget import Budget
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError
from rollart_hpc.launch.slurm.epilogue import LIMIT_S as EPILOGUE_S
from rollart_hpc.launch.slurm.epilogue import run_epilogues
from rollart_hpc.launch.slurm.nodes import excluded, note_nodes
from rollart_hpc.launch.slurm.place import CANCEL_S, SRUN_S, SlurmPlace
from rollart_hpc.launch.slurm.queue import RUNNING, end_as_cancelled
from rollart_hpc.launch.slurm.requeue import requeue, requeue_the_rest
from rollart_hpc.launch.slurm.satellites import Satellites
from rollart_hpc.launch.slurm.usage import usage
from rollart_hpc.launch.supervisor import DRAIN_S, LEAVE_S, Supervisor, Why
from rollart_hpc.observe import perfetto
from rollart_hpc.observe.report import write_report
from rollart_hpc.observe.status import Cluster, GpuHours, Status, read_status
from rollart_hpc.processes.lifetime import end_with_parent, raise_file_limit
from rollart_hpc.rundir import RunDir, open_run_dir
from rollart_hpc.vocabulary import ExitCode, RunState

END_S = (
    DRAIN_S + 2 * LEAVE_S + SRUN_S + CANCEL_S + EPILOGUE_S + 10.0
)  # maximum time from SIGTERM to the end of this process


class Output:
    """The supervisor's screen in a job: prints lines to the job's log."""

    def say(self, text: str) -> None:
        print(time.strftime("%m-%d %H:%M:%S"), text, flush=True)

    def show(self, status: Status) -> None:
        pass


class Job:
    def __init__(self, run: RunDir, held_by: record.HeldBy = "script") -> None:
        """A job that is not held by a batch script may have any shape and is never requeued."""
        self.held_by = held_by
        self.once = once = held_by != "script"
        self.run, self.out, self.slurm = run, Output(), Slurm()
        self.config, self.site = read_resolved(run.config), read_site(run.site)
        self.plan = settle_plan(run)
        read = fold if once and not fits(self.plan, os.environ) else read_allocation
        self.allocation = read(self.plan, self.slurm, os.environ)
        self.satellites = Satellites(run, self.config, self.plan, self.site, self.slurm, self.out.say)

    def carry_out(self) -> int:
        if record.is_cancelled(record.read(self.run)) or has_finished(self.run):
            self.out.say("nothing to do: the run is over")
            self.satellites.end(at_once=False)
            return 0
        self._note_bad_nodes()
        self._begin()
        try:
            outcome, why = self._supervise()
        except RollartError as error:
            if error.exit_code == ExitCode.ENVIRONMENT and self._note_bad_nodes() and self._may_go_on():
                self.out.say(f"{error}\na node was lost, so the job is requeued")
                return self._requeue(error.what)
            self._end(RunState.FAILED, error.what)
            raise
        if outcome is RunState.FINISHED:
            self._end(outcome, "")
            self._report()
            return 0
        if why == "limit" and not record.is_cancelled(record.read(self.run)):
            return self._requeue("the job was near its time limit")
        state, reason = self._why_terminated()
        if state is RunState.DRAINED:
            return self._requeue(reason)
        if state is RunState.REQUEUED:  # components that still run when this process ends are failed, not requeued
            requeue_the_rest(self.slurm, self.allocation)
        self._end(state, reason)
        if record.is_cancelled(record.read(self.run)) and not self.once:
            end_as_cancelled(self.slurm, self.allocation.leader)
        return ExitCode.DRAINED

    def _supervise(self) -> tuple[RunState, Why]:
        budget = Budget(self.slurm, self.allocation.leader, self.config.job.signal_s)
        place = SlurmPlace(
            self.run, self.config, self.plan, self.site, self.allocation, self.slurm, budget, self.satellites
        )
        workers = SlurmWorkers(self.run, self.config, self.slurm)
        try:
            place.open()
            with _ended_by_signals():
                prepare_model(self.run, self.config, self.out.say)
            supervisor = Supervisor(self.run, self.config, self.plan, self.out, place, workers)
            return supervisor.supervise(), supervisor.why
        except _TimeIsUp:
            return RunState.DRAINED, "limit"
        finally:
            workers.close()
            self.satellites.close()
            place.close()
            run_epilogues(self.run.path, self.plan, self.site, self.allocation, self.out.say)

    # --- records ---------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._may_go_on():
            limit = self.config.restarts.attempts
            logs, resume = (command_line(word, self.run.path) for word in ("logs", "resume"))
            error = SiteError(
                f"started {limit + 1} times without a new checkpoint (restarts.attempts = {limit})",
                f"find the cause ({logs}), then: {resume}",
            )
            self._end(RunState.FAILED, error.what)
            raise error
        parts = [_part(component, self.allocation) for component in self.plan.home]
        job = self.allocation
        write_ownership(self.run, self.run.last_attempt(), ())  # first: a recorded start has told its own state
        record.add(self.run, record.Began(job.leader, job.restart, self._newest_step(), parts, held_by=self.held_by))
        self._write_cluster({})
        nodes = ", ".join(f"{node} = {host}" for node, host in job.hosts.items())
        self.out.say(f"job {job.leader}, restart {job.restart}, on {nodes}")

    def _end(self, state: RunState, reason: str) -> None:
        """Only a requeued run still needs its other jobs."""
        with suppress(RollartError):  # a full disk must not hide why the job ended
            record.add(self.run, record.Ended(self.allocation.leader, self.allocation.restart, state, reason))
            write_ownership(self.run, self.run.last_attempt(), (), state, reason)
        if state is not RunState.REQUEUED:
            self.satellites.end(at_once=state is RunState.CANCELLED)

    def _may_go_on(self) -> bool:
        used = record.num_fruitless(record.read(self.run), self._newest_step())
        return used <= self.config.restarts.attempts

    def _newest_step(self) -> int:
        newest = self.run.newest_checkpoint()
        return newest.step if newest else -1

    def _note_bad_nodes(self) -> bool:
        """Check the nodes of this start and of the one before. Returns whether there are new bad ones."""
        began = [line for line in record.read(self.run) if isinstance(line, record.Began)][-1:]
        before = (host for line in began for part in line.parts for host in part.hosts)
        return note_nodes(self.run, self.slurm, {*before, *self.allocation.hosts.values()}, self.out.say)

    # --- the end ---------------------------------------------------------------------------------

    def _requeue(self, reason: str) -> int:
        if self.once:
            self._end(RunState.DRAINED, reason)
            return ExitCode.DRAINED
        self._note_bad_nodes()
        self._end(RunState.REQUEUED, reason)
        try:
            requeue(self.slurm, self.allocation.leader, excluded(self.run, self.site), self.out.say)
        except SlurmError as error:
            self._end(RunState.DRAINED, f"{reason}; Slurm refused to requeue the job: {error.what}")
            raise SiteError(error.what, f"resume the run: {command_line('resume', self.run.path)}") from None
        return 0

    def _why_terminated(self) -> tuple[RunState, str]:
        """Slurm sends the same signal to a job that it cancels, requeues, or preempts after a grace time."""
        if not record.is_cancelled(record.read(self.run)):
            try:
                known = self.slurm.records("show", "job", str(self.allocation.leader))[0]
            except SlurmError as error:
                return RunState.DRAINED, f"ended by a signal; {error.what}"
            if int(known.get("Restarts", "0")) > self.allocation.restart:
                return RunState.REQUEUED, "preempted, or requeued by a user"
            if known.get("JobState") == RUNNING:
                return RunState.DRAINED, "about to be preempted, or signalled by a user"
        return RunState.CANCELLED, "the job was cancelled"

    def _write_cluster(self, gpu_hours: dict[str, GpuHours]) -> None:
        partitions = {pool: self.plan.partitions_of(pool) for pool in self.config.pools}
        write_json(self.run.cluster, msgspec.to_builtins(Cluster(partitions, gpu_hours)))

    def _report(self) -> None:
        try:
            status = read_status(self.run.status)
            self._write_cluster(usage(self.run, self.plan, status.time_s if status else 0.0))
            perfetto.merge((self.run.traces(attempt) for attempt in self.run.attempt_numbers()), self.run.trace)
            self.out.say(f"finished; report: {write_report(self.run.path, RunState.FINISHED)}")
        except RollartError as error:  # the run itself is fine
            self.out.say(f"no report: {error}")


class _TimeIsUp(BaseException):
    """SIGUSR1 while the model is made: the job can end at once, because there is nothing to save."""


class _ended_by_signals:
    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGUSR1, self._raise)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGUSR1, self._before)

    @staticmethod
    def _raise(number: int, frame: FrameType | None) -> None:
        raise _TimeIsUp


def _part(component: Component, allocation: Allocation) -> record.Part:
    hosts = [allocation.hosts[node] for node in component.nodes]
    job_id = allocation.job_ids[component.index]
    return record.Part(job_id, component.hardware, component.partition, hosts, component.num_gpus)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m rollart_hpc.launch.slurm.job", allow_abbrev=False)
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--held-by", default="script", choices=get_args(record.HeldBy), help="what owns the job")
    args = parser.parse_args(arguments)
    os.umask(0o077)  # files of a run are private to its user
    raise_file_limit()  # a supervisor has a descriptor for each process
    end_with_parent(signal.SIGTERM)  # the parent is debug's prompt, if that started it
    # The time limit's signal may come before the supervisor handles it. Children must not inherit an ignored signal.
    signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        return Job(open_run_dir(args.run_dir), args.held_by).carry_out()
    except RollartError as error:
        print(f"rollart-hpc: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
