"""`plan`: the nodes, processes and cost of a run at a site. Submits nothing."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from rollart_hpc.config import packaged
from rollart_hpc.config.load import Loaded, load_all
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.errors import UserError
from rollart_hpc.launch.fit import Fit, fit_data, fit_of
from rollart_hpc.launch.launcher import NewRun
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.summary import fit_lines, plan_data, plan_lines
from rollart_hpc.rundir import RUN_ROOT_VARIABLE, RunDir, new_run_dir

SITE_VARIABLE = "ROLLART_SITE"


def plan(args: argparse.Namespace) -> int:
    if args.optimize:
        from rollart_hpc.cli.optimize import optimize  # late: it needs the simulator

        return optimize(args)
    loaded = load_for_site(args, needs_model=False)
    found = make_plan(loaded.config, loaded.site)
    fit = fit_of(loaded.config, loaded.site, found)
    if args.json:
        head = {"run": loaded.config.name, "site": loaded.site.name}
        print(json.dumps({**head, **plan_data(found), "memory": fit_data(fit)}, indent=1))
        need_fit(loaded, fit)
        return 0
    print(f"{loaded.config.name} on site {loaded.site.name}: {len(found.procs)} processes")
    print("\n".join([*plan_lines(found), "", *fit_lines(fit)]).rstrip())
    need_fit(loaded, fit)
    return 0


def need_fit(loaded: Loaded, fit: Fit) -> None:
    fit.need(f"run {loaded.config.name} does not fit into the memory of site {loaded.site.name}")


def load_for_site(args: argparse.Namespace, *, needs_model: bool = True) -> Loaded:
    """The site is --site, else ROLLART_SITE, else the run file's, else the user's only site file. Prints warnings."""
    own = packaged.user_names("sites")
    else_site = own[0] if len(own) == 1 else RunConfig.site
    site = args.site or os.environ.get(SITE_VARIABLE)
    loaded = load_all(args.run, args.overrides, site, else_site, needs_model=needs_model)
    tell_loaded(loaded)
    return loaded


def new_run(loaded: Loaded, run_dir: str | None) -> NewRun:
    """A run in `run_dir`, else in the run root of its site. Creates nothing."""
    config, site = loaded.config, loaded.site
    run = RunDir(run_dir) if run_dir else new_run_dir(config.name, run_root_of(site))
    if run.path.exists() and not (run.path.is_dir() and not any(run.path.iterdir())):
        raise UserError(f"run directory {run.path} already exists", "choose another --run-dir, or resume that run")
    return NewRun(run, config, site, make_plan(config, site))


def run_root_of(site: SiteConfig) -> Path | None:
    """The site's run root; None if the user's environment variable or the default applies."""
    if os.environ.get(RUN_ROOT_VARIABLE) or not site.run_root:
        return None
    return Path(os.path.expandvars(site.run_root)).expanduser().absolute()


def tell_loaded(loaded: Loaded) -> None:
    for note in loaded.notes:
        print(f"note: {note}", file=sys.stderr)
    tell_warnings(loaded.warnings)


def tell_warnings(warnings: list[str]) -> None:
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
