"""`fork`: starts a new run from a checkpoint of another one."""

from __future__ import annotations

import argparse

from rollart_hpc.cli.export import find_checkpoint
from rollart_hpc.cli.plan import run_root_of, tell_warnings
from rollart_hpc.cli.run import tell
from rollart_hpc.cli.screen import LiveScreen
from rollart_hpc.config.load import load_site
from rollart_hpc.config.resolved import read_site
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import command_line
from rollart_hpc.launch.changes import propose
from rollart_hpc.launch.forking import fork as make_fork
from rollart_hpc.launch.forking import forked_config
from rollart_hpc.launch.launcher import launcher_of
from rollart_hpc.rundir import RunDir, new_run_dir, open_run_dir
from rollart_hpc.vocabulary import ExitCode


def fork(args: argparse.Namespace) -> int:
    source = open_run_dir(args.run_dir)
    checkpoint = find_checkpoint(source, args.step)
    site = _site(source, args.site)
    config, warnings = forked_config(source, checkpoint.step, [*args.overrides, f"site={site.name}"])
    tell_warnings(warnings)
    target = RunDir(args.to) if args.to else new_run_dir(config.name, run_root_of(site))
    make_fork(source, checkpoint, target, config, site)
    print(f"forked step {checkpoint.step} of {source.path} into {target.path}", flush=True)
    if args.no_start:
        print(f"start it with: {command_line('resume', target.path)}")
        return ExitCode.OK
    with LiveScreen(target, quiet=args.quiet) as screen:
        result = launcher_of(site).resume(target, propose(target, ()), screen)
    return tell(target, result)


def _site(source: RunDir, name: str | None) -> SiteConfig:
    if name:
        return load_site(name)
    return read_site(source.site) if source.site.exists() else SiteConfig()
