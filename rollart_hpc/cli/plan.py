"""`plan`: the nodes, processes and cost of a run at a site. Submits nothing."""

from __future__ import annotations

import argparse
import json
import os
import sys

from rollart_hpc.config import packaged
from rollart_hpc.config.load import Loaded, load_all
from rollart_hpc.config.schema import RunConfig
from rollart_hpc.launch.plan import make_plan
from rollart_hpc.launch.summary import plan_data, plan_lines

SITE_VARIABLE = "ROLLART_SITE"


def plan(args: argparse.Namespace) -> int:
    loaded = load_for_site(args, needs_model=False)
    found = make_plan(loaded.config, loaded.site)
    if args.json:
        head = {"run": loaded.config.name, "site": loaded.site.name}
        print(json.dumps({**head, **plan_data(found)}, indent=1))
        return 0
    print(f"{loaded.config.name} on site {loaded.site.name}: {len(found.procs)} processes")
    print("\n".join(plan_lines(found)))
    return 0


def load_for_site(args: argparse.Namespace, *, needs_model: bool = True) -> Loaded:
    """The site is --site, else ROLLART_SITE, else the run file's, else the user's only site file. Prints warnings."""
    own = packaged.user_names("sites")
    else_site = own[0] if len(own) == 1 else RunConfig.site
    site = args.site or os.environ.get(SITE_VARIABLE)
    loaded = load_all(args.run, args.overrides, site, else_site, needs_model=needs_model)
    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return loaded
