"""Submits a plan as a job. Owns the calls of sbatch: a run gets exactly one job, even if sbatch times out."""

from __future__ import annotations

import getpass
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from rollart_hpc.errors import SiteError, UserError, command_line
from rollart_hpc.files import make_directory, write_atomic
from rollart_hpc.launch.launcher import NewRun
from rollart_hpc.launch.plan import Plan
from rollart_hpc.launch.plan_file import create_run
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError, SlurmSilent
from rollart_hpc.launch.slurm.inventory import is_usable
from rollart_hpc.launch.slurm.permission import need_permission
from rollart_hpc.launch.slurm.queue import job_ids, leader_of, live_jobs, own_job_ids
from rollart_hpc.launch.slurm.satellite_script import render_satellite
from rollart_hpc.launch.slurm.script import job_name, render_script
from rollart_hpc.rundir import RunDir

PAUSES_S = (2.0, 5.0, 10.0, 20.0)  # before looking for the job after sbatch timed out
_NO_ANSWER = re.compile(r"timed out|unable to contact slurm|zero bytes|connection refused|communications", re.I)
_REFUSED = re.compile(r"(?:allocation failure|batch job submission failed): *(?P<why>.*)", re.I)
_NOT_NOW = re.compile(r"node configuration is not available|nodes? (not available|are busy)|not available now", re.I)
_START = re.compile(r"to start at (?P<when>\S+)")
_FIXES = {  # word in Slurm's message -> fix
    "unrecognized option": "correct job.sbatch, or sbatch in the site file",
    "account": "set job.account=..., or account in the site file (yours: sacctmgr show assoc user=$USER)",
    "qos": "set job.qos=..., or qos in the site file (yours: sacctmgr show assoc user=$USER format=qos)",
    "permission": "ask for access, or use another partition (serves in the site file)",
    "group": "ask for access, or use another partition (serves in the site file)",
    "time limit": "request less: job.time_minutes=...",
    "node count": "request fewer processes, or correct max_nodes in the site file",
    "partition not available": "wait until the partition takes jobs again, or use another one (see: sinfo)",
    "configuration": "correct gpus, cpus and memory_gb of the class in the site file (rollart-hpc site check)",
    "memory": "correct memory_gb of the class in the site file (rollart-hpc site check)",
}

Say = Callable[[str], None]


@dataclass(frozen=True)
class Request(NewRun):
    """A run to submit."""

    @property
    def script(self) -> str:
        return render_script(self.plan, self.config, self.site, self.run)

    @property
    def other_scripts(self) -> list[str]:
        """Of the jobs that the run itself will submit, one for each class."""
        kinds = {component.hardware: component for component in reversed(self.plan.satellites)}
        return [render_satellite(one, self.plan, self.config, self.site, self.run) for one in kinds.values()]

    @property
    def name(self) -> str:
        return job_name(self.config, self.run)


def check_request(request: Request, slurm: Slurm, say: Say) -> str:
    """Returns Slurm's estimated start, which may be empty. Raises if Slurm would refuse the job."""
    for waits_for in need_permission(slurm, request.plan, request.config, request.site):
        say(f"warning: {waits_for}")
    busy = _busy(request, slurm)
    if busy:
        raise UserError(
            f"job {busy[0]} of {request.run.path} is still in the queue",
            f"wait for it, or end it: {command_line('cancel', request.run.path)}",
        )
    for script in request.other_scripts:
        test_script(script, request.plan, slurm, say)
    return test_script(request.script, request.plan, slurm, say)


def _busy(request: Request, slurm: Slurm) -> list[str]:
    """Jobs of the run in the queue, including one that was submitted with another path to the same directory."""
    names = [line.name for line in record.read(request.run) if isinstance(line, record.Submitting)]
    return live_jobs(slurm, own_job_ids(request.run), [request.name, *names])


def test_script(script: str, plan: Plan, slurm: Slurm, say: Say) -> str:
    """Have Slurm check the script without submitting it."""
    answer = slurm.ask("sbatch", "--test-only", stdin=script)
    if answer.code == 0:
        starts = _START.findall(answer.stderr)
        return max(starts, default="")
    if _NO_ANSWER.search(answer.stderr):
        raise SiteError(f"Slurm does not answer: {answer.stderr.strip()}", "check that it is up: scontrol ping")
    waits_for = _unusable_now(plan, slurm) if _NOT_NOW.search(answer.stderr) else []
    if not waits_for:
        raise _refused(answer.stderr)
    say(f"warning: the job can't start now and will wait in the queue: {'; '.join(waits_for)}")
    return ""


def _unusable_now(plan: Plan, slurm: Slurm) -> list[str]:
    """Partitions that have enough nodes for the plan, but not enough that are up.

    For these `sbatch --test-only` reports the same error as for a request that no node can ever fulfil, while plain
    sbatch puts the job into the queue.
    """
    rows = slurm.table("sinfo", {"partition": "%R", "node": "%N", "state": "%T", "reason": "%E"}, "--Node")
    found = []
    for component in plan.components:
        nodes = {row["node"]: row for row in rows if row["partition"] in component.partition.split(",")}
        bad = {node: row for node, row in nodes.items() if not is_usable(row["state"])}
        if len(nodes) - len(bad) < len(component.nodes) <= len(nodes):
            why = ", ".join(dict.fromkeys(f"{row['state']}: {row['reason']}" for row in bad.values()))
            found.append(f"{len(bad)} of {len(nodes)} nodes of partition {component.partition} can't be used ({why})")
    return found


def submit(request: Request, slurm: Slurm, say: Say) -> int:
    """Prepare the run directory and submit. Returns the job's id."""
    create_run(request.run, request.config, request.site, request.plan)
    return submit_again(request, slurm, say)


def submit_again(request: Request, slurm: Slurm, say: Say) -> int:
    """Submit a run whose directory exists, to resume it."""
    make_directory(request.run.job_logs)
    write_atomic(request.run.script, request.script)
    past = job_ids(request.run)
    record.add(request.run, record.Submitting(request.name))
    job_id = _submit_once(request, slurm, say, past)
    record.add(request.run, record.Submitted(job_id, len(request.plan.home), request.name))
    if record.is_cancelled(record.read(request.run)):
        slurm.ask("scancel", str(job_id))
        raise UserError(f"{request.run.path} was cancelled while it was being submitted", _resume(request.run))
    return job_id


def _resume(run: RunDir) -> str:
    return f"submit it again: {command_line('resume', run.path)}"


def _submit_once(request: Request, slurm: Slurm, say: Say, past: list[int]) -> int:
    """A call that timed out may still have submitted the job, so the queue is checked before the next call.

    `past`: earlier jobs of the run, which have the same name.
    """
    said = ""
    for pause_s in (*PAUSES_S, None):
        try:
            answer = slurm.ask("sbatch", "--parsable", str(request.run.script))
        except SlurmSilent as error:
            said = error.what
        else:
            if answer.code == 0:
                return int(answer.stdout.strip().split(";")[0])
            if not _NO_ANSWER.search(answer.stderr):
                raise _refused(answer.stderr)
            said = answer.stderr.strip()
        say(f"{said}: checking whether the job is in the queue")
        if pause_s is None:
            break
        time.sleep(pause_s)
        found = _look_up(slurm, request.name, past)
        if found:
            return found
    raise SiteError(
        f"the job could not be submitted: {said}",
        f"check that it is not in the queue (squeue --name {request.name}), "
        f"then: {command_line('resume', request.run.path)}",
    )


def _look_up(slurm: Slurm, name: str, past: list[int]) -> int:
    """0 if there is no such job. Raises if Slurm does not answer, because then a second job must not be submitted."""
    for pause_s in (*PAUSES_S, None):
        try:
            return next((found for found in _find_jobs(slurm, name) if found not in past), 0)
        except SlurmError:
            if pause_s is None:
                raise
            time.sleep(pause_s)
    raise AssertionError


def _find_jobs(slurm: Slurm, name: str) -> list[int]:
    """Ids of all jobs of that name, newest first. Components count as their leader."""
    rows = slurm.table("squeue", {"id": "%i"}, f"--name={name}", f"--user={getpass.getuser()}", "--states=all")
    return sorted({int(leader_of(row["id"])) for row in rows}, reverse=True)


def _refused(stderr: str) -> UserError:
    lines = [line.partition("error: ")[2] or line for line in stderr.strip().splitlines()]
    lines = [line for line in lines if not line.startswith("Try ")]  # "--help", after what was wrong
    match = _REFUSED.search(stderr)
    why = match["why"] if match else lines[-1] if lines else "no reason given"
    fix = next((fix for word, fix in _FIXES.items() if word in why.lower()), "correct the run or the site file")
    return UserError(f"Slurm refused the job: {why}", fix)
