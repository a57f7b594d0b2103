"""`site init` and `site check`: write the site file of a live cluster, or compare one with the cluster."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rollart_hpc.config import packaged
from rollart_hpc.config.load import load_site
from rollart_hpc.errors import SiteError, UserError
from rollart_hpc.files import make_directory, write_atomic
from rollart_hpc.launch import finding
from rollart_hpc.launch.sites.compare import compare
from rollart_hpc.launch.sites.describe import choose, class_name, describe, named
from rollart_hpc.launch.slurm.commands import Slurm
from rollart_hpc.launch.slurm.inventory import read_inventory
from rollart_hpc.vocabulary import ExitCode


def init(args: argparse.Namespace) -> int:
    inventory = read_inventory(Slurm())
    chosen = choose(inventory)
    if not chosen:
        raise SiteError("the cluster has no usable node", "see why: sinfo -R")
    text = describe(inventory)
    if args.output == "-":
        print(text, end="")
        return 0
    name = class_name(inventory.cluster)
    path = (
        Path(args.output).expanduser().absolute() if args.output else packaged.user_directory("sites") / f"{name}.yaml"
    )
    if path.exists():
        raise UserError(f"{path} already exists", "remove it first, or choose another --output")
    make_directory(path.parent)
    write_atomic(path, text)
    load_site(path)
    site = path if args.output else name
    print(f"wrote {path}: {', '.join(named(chosen))}")
    print(f"  review the guesses, then:  rollart-hpc doctor --site {site}")
    print(f"  then train something:      rollart-hpc submit quickstart --site {site}")
    return 0


def check(args: argparse.Namespace) -> int:
    site = load_site(args.site)
    if site.launcher != "slurm":
        raise UserError(f"site {site.name} is one machine, not a cluster", "name the site file of a cluster")
    found = compare(site, read_inventory(Slurm()))
    if args.json:
        print(json.dumps([one.as_dict() for one in found], indent=1))
    else:
        print("\n".join(finding.lines(found)))
        print(finding.tally(found), file=sys.stderr)
    return ExitCode.USER if finding.has_failed(found) else 0
