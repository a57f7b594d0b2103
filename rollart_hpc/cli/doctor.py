"""`doctor`: would a run work at this site? Prints one line per check, with the fix for each problem."""

from __future__ import annotations

import argparse
import json
import sys

from rollart_hpc.cli.plan import run_root_of
from rollart_hpc.config import packaged
from rollart_hpc.config.load import load_all, load_site
from rollart_hpc.config.site import SiteConfig
from rollart_hpc.doctor.examine import examine
from rollart_hpc.doctor.scope import Scope, scope_of_run, scope_of_site
from rollart_hpc.errors import UserError
from rollart_hpc.launch import finding
from rollart_hpc.launch.finding import Finding
from rollart_hpc.rundir import run_root
from rollart_hpc.vocabulary import ExitCode


def doctor(args: argparse.Namespace) -> int:
    site, scope = _look_at(args)
    root = run_root_of(site) or run_root()
    shown: list[Finding] = []

    def show(found: list[Finding]) -> None:
        shown.extend(found)
        if not args.json:
            for line in finding.lines(found):
                print(line, flush=True)

    examine(site, scope, root, show, _say, wait_s=None if args.no_jobs else args.wait_minutes * 60)
    if args.json:
        print(json.dumps([one.as_dict() for one in shown], indent=1))
    _say(finding.tally(shown))
    return ExitCode.ENVIRONMENT if finding.has_failed(shown) else 0


def _look_at(args: argparse.Namespace) -> tuple[SiteConfig, Scope]:
    site = args.site or _own_site()
    if not args.run:
        found = load_site(site)
        return found, scope_of_site(found)
    loaded = load_all(args.run, site=site)
    return loaded.site, scope_of_run(loaded.config, loaded.site)


def _own_site() -> str:
    names = packaged.user_names("sites")
    if len(names) != 1:
        raise UserError(
            "no site given, and you don't have exactly one site file",
            "name one with --site; `rollart-hpc site init` writes one for this cluster",
        )
    return names[0]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
