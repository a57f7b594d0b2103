"""The doctor's job, from the login node: submits one component per class, waits for it and cleans up."""

from __future__ import annotations

import secrets
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rollart_hpc.config.site import SiteConfig
from rollart_hpc.doctor.exchange import new_token
from rollart_hpc.doctor.files import Folder
from rollart_hpc.doctor.scope import Scope
from rollart_hpc.errors import SiteError
from rollart_hpc.files import make_directory, write_atomic
from rollart_hpc.launch.finding import Finding, fail
from rollart_hpc.launch.slurm.commands import Slurm, SlurmError
from rollart_hpc.launch.slurm.queue import OVER
from rollart_hpc.launch.slurm.script import free_options, setup_lines

MEMORY_MB = 1000
MINUTES = 5
_ARRIVES_S = 20.0  # maximum delay until a file that a node wrote is visible here
_POLL_S, _LONGEST_POLL_S = 1.0, 10.0

Say = Callable[[str], None]


def ask_nodes(site: SiteConfig, scope: Scope, run_root: Path, slurm: Slurm, wait_s: float, say: Say) -> list[Finding]:
    """Run one job with a node of every class. Leaves nothing behind."""
    names = list(scope.classes)
    folder = Folder(make_directory(run_root / f".doctor-{secrets.token_hex(4)}"))
    canary = secrets.token_hex(8)
    try:
        folder.write_site(site)
        folder.write_secrets(new_token(), canary)
        folder.write_need(scope.shm_bytes)
        write_atomic(folder.path / "job.sh", script(folder, site, names, canary))
        shown = ", ".join(f"{name} ({site.classes[name].partition})" for name in names)
        say(f"submitting one job (limit {MINUTES} min) with one node of each class: {shown}")
        job_id = _submit(folder, site, names, slurm)
        if isinstance(job_id, Finding):
            return [job_id]
        try:
            late = _wait(slurm, job_id, wait_s, say)
        finally:
            slurm.ask("scancel", job_id)
        return [late] if late else list(_results(folder, names, canary))
    finally:
        shutil.rmtree(folder.path, ignore_errors=True)


def script(folder: Folder, site: SiteConfig, names: list[str], canary: str) -> str:
    first = site.options(names[0])
    python = first.python or sys.executable
    command = [python, "-P", "-m", "rollart_hpc.doctor.job", str(folder.path), canary, *names]
    lines = [
        "#!/bin/bash -l",
        f"echo started > {shlex.quote(str(folder.started))}",
        "unset CUDA_VISIBLE_DEVICES",
        *setup_lines(site, first),
        f"exec {shlex.join(command)}",
    ]
    return "\n".join(lines) + "\n"


def components(folder: Folder, site: SiteConfig, names: list[str]) -> Iterator[str]:
    """sbatch arguments, with every option for every component."""
    for index, name in enumerate(names):
        options = site.options(name)
        chosen: dict[str, str] = {
            "job-name": "rollart-doctor", "partition": site.classes[name].partition, "nodes": "1", "ntasks": "1",
            "cpus-per-task": "1", "mem": f"{MEMORY_MB}M", "gres": gres(site, name), "time": str(MINUTES),
            "propagate": "NONE", "account": options.account, "qos": options.qos, "constraint": options.constraint,
            "reservation": options.reservation, "exclude": options.exclude,
        }  # fmt: skip
        if index == 0:
            chosen |= {"output": str(folder.log), "chdir": str(folder.path)}
        else:
            yield ":"
        yield from (f"--{key}={value}" for key, value in chosen.items() if value)
        yield from (f"--{key}" + ("" if value is None else f"={value}") for key, value in free_options(options.sbatch))


def gres(site: SiteConfig, name: str) -> str:
    """One GPU if the class has GPUs."""
    own = site.classes[name]
    return ":".join(["gpu", *([own.gres] if own.gres else []), "1"]) if own.gpus else ""


def _submit(folder: Folder, site: SiteConfig, names: list[str], slurm: Slurm) -> str | Finding:
    try:
        said = slurm.run("sbatch", "--parsable", *components(folder, site, names), str(folder.path / "job.sh"))
    except SlurmError as error:
        fix = "set the account, qos or constraint that the cluster requires in the site file (rollart-hpc site check)"
        return fail("job", error.what, error.fix or fix)
    return said.strip().split(";")[0]


def _wait(slurm: Slurm, job_id: str, wait_s: float, say: Say) -> Finding | None:
    """Wait until the job has ended. Returns a finding with Slurm's reason if it does not start or end in time."""
    deadline, pause_s = time.monotonic() + wait_s, _POLL_S
    told = False
    while True:
        try:
            rows = _rows(slurm, job_id)
        except SlurmError as error:  # no answer says nothing about the job
            reasons = error.what
        else:
            if all(row["state"] in OVER for row in rows):
                return None
            waiting = [row for row in rows if row["state"] == "PENDING"]
            reasons = ", ".join(f"{row['partition']}: {row['reason']}" for row in waiting) or "it is still running"
            if not waiting and not told:
                say(f"job {job_id} is running")
                told, deadline, pause_s = True, time.monotonic() + MINUTES * 60 + 60, _POLL_S
        if time.monotonic() > deadline:
            fix = "the nodes may be busy: try again later, wait longer (--wait-minutes), or see squeue --start"
            return fail("job", f"timed out: {reasons}", fix)
        time.sleep(pause_s)
        pause_s = min(_LONGEST_POLL_S, 1.5 * pause_s)


def _rows(slurm: Slurm, job_id: str) -> list[dict[str, str]]:
    """One row per component; none if Slurm no longer knows the job."""
    fields = {"state": "%T", "reason": "%r", "partition": "%P"}
    try:
        return slurm.table("squeue", fields, "--jobs", job_id, "--states=all")
    except SlurmError as error:
        if "invalid job id" in error.stderr.lower():
            return []
        raise


def _results(folder: Folder, names: list[str], canary: str) -> Iterator[Finding]:
    deadline = time.monotonic() + _ARRIVES_S
    while (found := folder.read_findings()) is None and folder.started.exists() and time.monotonic() < deadline:
        if folder.log.exists() and folder.log.stat().st_size:
            break
        time.sleep(_POLL_S)
    if found is None:
        yield _nothing(folder)
        return
    yield from found
    for name in names:
        written = any(one.check == f"{name}: shared file system" and one.level == "ok" for one in found)
        if written and not folder.was_seen(name, canary):
            fix = "set run_root to a directory that all nodes share"
            yield fail(
                f"{name}: shared file system", f"a file that a node wrote to {folder.path} is not visible here", fix
            )


def _nothing(folder: Folder) -> Finding:
    """Why the job ended without a result."""
    if not folder.started.exists() and not folder.log.exists():
        return fail(
            "shared file system",
            f"the job ran, but its files in {folder.path} are not visible here",
            "set run_root in the site file to a directory that this host and all nodes share",
        )
    try:
        said = " / ".join(folder.log.read_text(errors="replace").strip().splitlines()[-3:])
    except OSError as error:
        raise SiteError(f"can't read {folder.log}: {error.strerror}") from None
    fix = "in the site file, set python to an interpreter that the nodes can run, or load one in prologue"
    return fail("python", f"rollart-hpc did not start on a node: {said or 'no message'}", fix)
