"""`submit`: hands a run to a cluster. With --dry-run, stdout has the batch script and nothing else."""

from __future__ import annotations

import argparse
import sys

from rollart_hpc.cli.following import follow_to_the_end
from rollart_hpc.cli.plan import load_for_site, need_fit, new_run
from rollart_hpc.cli.screen import LiveScreen
from rollart_hpc.doctor.examine import need_ready
from rollart_hpc.errors import command_line
from rollart_hpc.launch.fit import fit_of
from rollart_hpc.launch.launcher import Handed, launcher_of
from rollart_hpc.launch.summary import fit_lines, plan_lines
from rollart_hpc.rundir import RunDir


def submit(args: argparse.Namespace) -> int:
    loaded = load_for_site(args)
    launcher = launcher_of(loaded.site)
    new = new_run(loaded, args.run_dir)
    script = launcher.script(new)
    _say(f"{loaded.config.name} on site {loaded.site.name}")
    fit = fit_of(loaded.config, loaded.site, new.plan)
    _say("\n".join([*plan_lines(new.plan), "", *fit_lines(fit)]).rstrip())
    need_fit(loaded, fit)
    _say(f"run directory: {new.run.path}")
    if args.dry_run:
        print(script, end="")
        _say("dry run: nothing was created or submitted")
        return 0
    need_ready(new.site, new.run.path.parent)
    start = launcher.check(new, _say)
    if args.test_only:
        print(f"Slurm would start the job at {start}" if start else "Slurm accepts the job and gives no start time")
        return 0
    with LiveScreen(new.run) as screen:
        result = launcher.start(new, screen)
    assert isinstance(result, Handed)
    print(f"{result.title} submitted")
    next_commands(new.run)
    return follow_to_the_end(new.run, launcher, args.quiet) if args.wait else 0


def next_commands(run: RunDir) -> None:
    for words, what in (("status",), "show its status"), (("logs", "-f"), "follow its logs"), (("cancel",), "end it"):
        print(f"  {command_line(*words, run.path)}   # {what}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
