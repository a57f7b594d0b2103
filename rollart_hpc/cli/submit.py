"""`submit`: submits a run as a job to a Slurm cluster. With --dry-run, stdout has the batch script and nothing else."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from rollart_hpc.cli.plan import load_for_site
from rollart_hpc.cli.screen import LiveScreen, summary
from rollart_hpc.config.load import Loaded
from rollart_hpc.config.resolved import read_resolved, read_site
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.doctor.quick import need_readiness
from rollart_hpc.errors import RollartError, UserError
from rollart_hpc.launch.ownership import has_finished
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.plan_file import settle_plan
from rollart_hpc.launch.slurm.commands import Slurm
from rollart_hpc.launch.slurm.follow import follow
from rollart_hpc.launch.slurm.nodes import note_nodes
from rollart_hpc.launch.slurm.record import avoided_hosts
from rollart_hpc.launch.slurm.record import read as read_records
from rollart_hpc.launch.slurm.submit import Request, check_request, submit_again
from rollart_hpc.launch.slurm.submit import submit as submit_request
from rollart_hpc.launch.status import run_status
from rollart_hpc.launch.summary import plan_lines
from rollart_hpc.rundir import RUN_ROOT_VARIABLE, RunDir, new_run_dir


def submit(args: argparse.Namespace) -> int:
    loaded = load_for_site(args)
    request = _request(loaded, args.run_dir)
    slurm = Slurm()
    _say(f"{loaded.config.name} on site {loaded.site.name}")
    _say("\n".join(plan_lines(request.plan)))
    _say(f"run directory: {request.run.path}")
    if args.dry_run:
        print(request.script, end="")
        _say("dry run: nothing was created or submitted")
        return 0
    need_readiness(request.site, request.run.path.parent, slurm)
    start = check_request(request, slurm)
    if args.test_only:
        print(f"Slurm would start the job at {start}" if start else "Slurm accepts the job and gives no start time")
        return 0
    job_id = submit_request(request, slurm, _say)
    print(f"job {job_id} submitted")
    _next_commands(request.run)
    return _wait(request.run, job_id, slurm, args.quiet) if args.wait else 0


def _request(loaded: Loaded, run_dir: str | None) -> Request:
    config, site = loaded.config, loaded.site
    if site.launcher != "slurm":
        raise UserError(
            f"site {site.name} is one machine, not a cluster",
            "name a cluster with --site (`rollart-hpc site init` writes a site file), or use: rollart-hpc run",
        )
    run = RunDir(run_dir) if run_dir else new_run_dir(config.name, run_root_of(site))
    if run.path.exists() and not (run.path.is_dir() and not any(run.path.iterdir())):
        raise UserError(f"run directory {run.path} already exists", "choose another --run-dir")
    return Request(run, config, site, make_plan(config, site))


def resume_job(run: RunDir) -> int:
    """Resume a run whose job has ended. Excludes nodes that failed it repeatedly."""
    slurm = Slurm()
    config, site = read_resolved(run.config), read_site(run.site)
    if has_finished(run):
        raise UserError(f"{run.path} has finished all {config.steps} steps", "start a new run")
    note_nodes(run, slurm, (), _say)
    avoided = avoided_hosts(read_records(run))
    for name, own in site.classes.items():
        own.exclude = ",".join(dict.fromkeys([host for host in (site.options(name).exclude, *avoided) if host]))
    request = Request(run, config, site, settle_plan(run))
    check_request(request, slurm)
    print(f"job {submit_again(request, slurm, _say)} submitted")
    _next_commands(run)
    return 0


def run_root_of(site: SiteConfig) -> Path | None:
    """The site's run root; None if the user's environment variable or the default applies."""
    if os.environ.get(RUN_ROOT_VARIABLE) or not site.run_root:
        return None
    return Path(os.path.expandvars(site.run_root)).expanduser().absolute()


def _next_commands(run: RunDir) -> None:
    path = shlex.quote(str(run.path))
    for command, what in (("status", "show its status"), ("logs -f", "follow its logs"), ("cancel", "end it")):
        print(f"  rollart-hpc {command} {path}   # {what}")


def _wait(run: RunDir, job_id: int, slurm: Slurm, quiet: bool) -> int:
    try:
        with LiveScreen(run, quiet=quiet) as screen:
            code = follow(run, job_id, slurm, screen)
    except KeyboardInterrupt:
        _say(f"the job keeps running; end it with: rollart-hpc cancel {shlex.quote(str(run.path))}")
        raise
    try:
        print("\n".join(summary(run_status(run))))
    except RollartError as error:
        _say(str(error))
    if run.report.exists():
        print(f"report: {run.report}")
    return code


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
