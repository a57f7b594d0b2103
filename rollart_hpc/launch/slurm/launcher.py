"""Runs on a Slurm cluster: a launcher whose runs are jobs. Puts together what the modules beside it do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rollart_hpc.config.resolved import read_site
from rollart_hpc.errors import RollartError
from rollart_hpc.launch.changes import Proposal
from rollart_hpc.launch.launcher import Handed, NewRun, Say, Session
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.plan_file import create_run, read_plan
from rollart_hpc.launch.screen import Screen
from rollart_hpc.launch.slurm import accounting, record
from rollart_hpc.launch.slurm.cancel import cancel_guest, cancel_jobs
from rollart_hpc.launch.slurm.commands import Slurm, clean_environment
from rollart_hpc.launch.slurm.interactive import (
    current_session,
    in_one_allocation,
    salloc_command,
    supervised,
    supervisor_command,
)
from rollart_hpc.launch.slurm.nodes import note_nodes
from rollart_hpc.launch.slurm.queue import Queue, all_rows, is_over, job_ids, rows_of
from rollart_hpc.launch.slurm.reach import reach
from rollart_hpc.launch.slurm.script import job_name, render_script
from rollart_hpc.launch.slurm.state import StateWatch, view
from rollart_hpc.launch.slurm.submit import Request, check_request, submit, submit_again
from rollart_hpc.launch.slurm.usage import usage
from rollart_hpc.launch.status import RunStatus, compose
from rollart_hpc.launch.supervisor import Outcome
from rollart_hpc.rundir import RunDir
from rollart_hpc.vocabulary import ExitCode, RunState


class SlurmWatch:
    def __init__(self, run: RunDir) -> None:
        self._run, self._queue, self._stable = run, Queue(run), StateWatch()

    @property
    def title(self) -> str:
        jobs = job_ids(self._run)
        return f"job {jobs[-1]}" if jobs else "run"

    def look(self) -> RunStatus:
        return compose(self._run, view(self._run, self._queue.rows()))

    def is_over(self, status: RunStatus) -> bool:
        is_stable = self._stable.is_stable(status.state)
        began = [line for line in record.read(self._run) if isinstance(line, record.Began)]
        outlives = bool(began) and began[-1].held_by != "script"  # the nodes of `debug` are released later
        return is_stable and status.state.is_over and (outlives or all(is_over(row) for row in status.jobs))

    def exit_code(self, status: RunStatus) -> int:
        is_known = status.state not in (RunState.FAILED, RunState.KILLED) and status.state.exit_code is not None
        return status.state.exit_code if is_known and status.state.exit_code is not None else _code_of_job(self._run)


class SlurmLauncher:
    is_cluster = True

    def start(self, new: NewRun, screen: Screen) -> Outcome | Handed:
        return Handed(f"job {submit(_request(new), Slurm(), screen.say)}")

    def resume(self, run: RunDir, proposal: Proposal, screen: Screen) -> Outcome | Handed:
        """Excludes nodes that failed the run repeatedly."""
        slurm, site = Slurm(), read_site(run.site)
        note_nodes(run, slurm, (), screen.say)
        avoided = record.avoided_hosts(record.read(run))
        for name, own in site.classes.items():
            own.exclude = ",".join(dict.fromkeys([host for host in (site.options(name).exclude, *avoided) if host]))
        request = Request(run, proposal.config, site, proposal.plan)
        check_request(request, slurm, screen.say)
        proposal.apply()
        return Handed(f"job {submit_again(request, slurm, screen.say)}")

    def script(self, new: NewRun) -> str:
        return render_script(new.plan, new.config, new.site, new.run)

    def check(self, new: NewRun, say: Say) -> str:
        return check_request(_request(new), Slurm(), say)

    def watch(self, run: RunDir) -> SlurmWatch:
        return SlurmWatch(run)

    def survey(self, runs: Sequence[RunDir]) -> list[RunStatus]:
        rows = all_rows(Slurm()) if runs else {}
        found = []
        for run in runs:
            found.append(compose(run, view(run, None if rows is None else rows_of(run, rows))))
        return found

    def account(self, status: RunStatus) -> None:
        run = RunDir(status.run_dir)
        site = read_site(run.site)
        status.gpu_hours = usage(run, read_plan(run), status.time_s)
        status.cost = round(sum(hours.given * site.gpu(name).cost for name, hours in status.gpu_hours.items()), 4)
        status.used, status.accounting = accounting.used(run)

    def history(self, run: RunDir) -> list[str]:
        lines = []
        for line in record.read(run):
            if isinstance(line, record.Ended):
                why = f": {line.reason}" if line.reason else ""
                lines.append(f"job {line.job}, start {line.restart + 1}: {line.state}{why}")
            elif isinstance(line, record.BadNode):
                lines.append(f"node {line.host} is bad: {line.reason}")
            elif isinstance(line, record.GoodNode):
                lines.append(f"node {line.host} is usable again")
            elif isinstance(line, record.AvoidedNodes):
                lines.append(f"nodes avoided from then on: {', '.join(line.hosts) or 'none'}")
        return lines

    def cancel(self, run: RunDir, say: Say) -> RunState:
        if record.is_guest(record.read(run)):
            cancel_guest(run, say)
        else:
            cancel_jobs(run, Slurm(), say)
        return self.watch(run).look().state

    def reach(self, run: RunDir, host: str, command: list[str]) -> list[str]:
        return reach(run, host, command)

    def allocate(self, new: NewRun, inside: list[str]) -> int | None:
        config = in_one_allocation(new.config)
        plan = make_plan(config, new.site)
        create_run(new.run, config, new.site, plan)
        if "SLURM_JOB_ID" in os.environ:
            return None
        record.add(new.run, record.Submitting(job_name(new.config, new.run)))
        command = salloc_command(new.run, plan, inside)
        return subprocess.run(command, env=clean_environment(), check=False).returncode

    @contextmanager
    def session(self, run: RunDir, *, is_guest: bool, say: Say) -> Iterator[Session]:
        current = current_session(run)
        command = supervisor_command(current, "user" if is_guest else "prompt", os.environ)
        with supervised(command, current.log, say):
            yield current


def _request(new: NewRun) -> Request:
    return Request(new.run, new.config, new.site, new.plan)


def _code_of_job(run: RunDir) -> int:
    """The exit code of a failed job, if Slurm still knows it."""
    try:
        rows = Slurm().records("show", "job", str(job_ids(run)[-1]))
        return int(rows[0].get("ExitCode", "0:0").split(":")[0]) or ExitCode.ENVIRONMENT
    except (RollartError, IndexError, ValueError):
        return ExitCode.ENVIRONMENT
