"""`debug`: a run in an interactive allocation, with a prompt to inspect it. Nothing is left behind when it ends."""

from __future__ import annotations

import argparse
import cmd
import os
import subprocess
import sys
from pathlib import Path

from rollart_hpc.cli.main import main as run_command
from rollart_hpc.cli.plan import load_for_site
from rollart_hpc.cli.submit import run_root_of
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.errors import RollartError, UserError
from rollart_hpc.launch.plan import Plan, make_plan
from rollart_hpc.launch.plan_file import create_run
from rollart_hpc.launch.slurm import record
from rollart_hpc.launch.slurm.allocation import Allocation
from rollart_hpc.launch.slurm.commands import clean_environment
from rollart_hpc.launch.slurm.interactive import (
    attach_command,
    current_allocation,
    salloc_command,
    supervised,
    supervisor_command,
)
from rollart_hpc.launch.slurm.script import job_name
from rollart_hpc.rundir import RunDir, new_run_dir, open_run_dir


def debug(args: argparse.Namespace) -> int:
    """Uses the current allocation if there is one. Otherwise salloc requests one and runs this command inside it."""
    if args.inside:
        return _sit(open_run_dir(args.run), "prompt")
    loaded = load_for_site(args)
    if loaded.site.launcher != "slurm":
        raise UserError(f"site {loaded.site.name} is one machine, not a cluster", "use: rollart-hpc run")
    run = RunDir(args.run_dir) if args.run_dir else new_run_dir(loaded.config.name, run_root_of(loaded.site))
    _in_one_allocation(loaded.config)
    plan = make_plan(loaded.config, loaded.site)
    create_run(run, loaded.config, loaded.site, plan)
    _say(f"run directory {run.path}")
    if "SLURM_JOB_ID" in os.environ:
        return _sit(run, "user")
    record.add(run, record.Submitting(job_name(loaded.config, run)))
    command = salloc_command(run, plan)
    return subprocess.run(command, env=clean_environment(), check=False).returncode


def _in_one_allocation(config: RunConfig) -> None:
    """An allocation with a prompt has all nodes of the run."""
    config.launch.mode = "het"
    for pool in config.pools.values():
        pool.elastic.min = pool.elastic.max = 0


def _sit(run: RunDir, held_by: record.HeldBy) -> int:
    plan, allocation = current_allocation(run)
    log = run.job_log("debug")
    with supervised(supervisor_command(run, held_by), log, _say):
        Prompt(run, plan, allocation, log).sit()
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Prompt(cmd.Cmd):
    prompt = "rollart> "

    def __init__(self, run: RunDir, plan: Plan, allocation: Allocation, log: Path) -> None:
        super().__init__()
        self._run, self._plan, self._allocation = run, plan, allocation
        self.intro = (
            f"starting all roles of {run.path} in job {allocation.leader}; the supervisor's log is {log}\n"
            "commands: status, logs [ROLE], attach PROCESS, exit (ends the run); anything else goes to your shell"
        )

    def sit(self) -> None:
        """Reads commands until the user exits. Ctrl-C ends only the current command."""
        while True:
            try:
                return self.cmdloop()
            except KeyboardInterrupt:
                self.intro = ""
                print()

    def do_status(self, line: str) -> None:
        """Show the status of the run."""
        run_command(["status", str(self._run.path)])

    def do_logs(self, line: str) -> None:
        """Show the logs of all processes, of one role or of one process."""
        run_command(["logs", str(self._run.path), *(["--role", line] if line else [])])

    def do_attach(self, line: str) -> None:
        """Open a shell on the node of a process."""
        try:
            subprocess.run(attach_command(line, self._plan, self._allocation), env=clean_environment(), check=False)
        except RollartError as error:
            print(error)

    def do_exit(self, line: str) -> bool:
        """End the run and release the nodes."""
        return True

    def do_EOF(self, line: str) -> bool:
        return True

    def emptyline(self) -> bool:
        return False

    def default(self, line: str) -> None:
        subprocess.run(line, shell=True, check=False)
